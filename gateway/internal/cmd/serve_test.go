package cmd

import (
	"net"
	"testing"
)

func TestLocalURL(t *testing.T) {
	for _, c := range []struct {
		name string
		addr net.TCPAddr
		want string
	}{
		{"loopback", net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}, "http://127.0.0.1:80"},
		{"every interface", net.TCPAddr{IP: net.IPv4zero, Port: 80}, "http://127.0.0.1:80"},
		{"every interface of IPv6", net.TCPAddr{IP: net.IPv6unspecified, Port: 80}, "http://127.0.0.1:80"},
		{"one interface of IPv6", net.TCPAddr{IP: net.IPv6loopback, Port: 80}, "http://[::1]:80"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := localURL(&c.addr); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

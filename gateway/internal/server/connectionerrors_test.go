package server

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// logged has the log go to a buffer until the test's end.
func logged(t *testing.T) (text func() string) {
	t.Helper()
	var mu sync.Mutex
	var b bytes.Buffer
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return b.Write(p)
	}), nil)))
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return b.String()
	}
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// A client that does not know the certificate is told of in the log, in words and not again at once; what else goes wrong with connections is not.
func TestRefusedCertificateIsTold(t *testing.T) {
	text := logged(t)
	certFile, keyFile, _ := writeCertificate(t, t.TempDir(), "test", 1)
	c, err := OpenCertificate(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	address := secured(t, c, http.NotFoundHandler())
	for range 3 {
		connection, err := tls.Dial("tcp", address, nil) // it trusts the system's authorities only
		if err == nil {
			connection.Close()
			t.Fatal("the certificate was believed")
		}
	}
	for end := time.Now().Add(time.Minute); text() == "" && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if got := text(); strings.Count(got, "a client refuses the server's certificate") != 1 || !strings.Contains(got, "bad certificate") {
		t.Errorf("the log has\n%s", got)
	}
}

func TestConnectionErrors(t *testing.T) {
	for _, c := range []struct {
		name, message string
		want          bool
	}{
		{"Rust's TLS", "http: TLS handshake error from 127.0.0.1:1: remote error: tls: unknown certificate\n", true},
		{"Go's", "http: TLS handshake error from 127.0.0.1:1: remote error: tls: bad certificate\n", true},
		{"OpenSSL's", "http: TLS handshake error from 127.0.0.1:1: remote error: tls: unknown certificate authority\n", true},
		{"no TLS", "http: TLS handshake error from 127.0.0.1:1: client sent an HTTP request to an HTTPS server\n", false},
		{"a scan", "http: TLS handshake error from 127.0.0.1:1: EOF\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := logged(t)
			var e connectionErrors
			if n, err := e.Write([]byte(c.message)); n != len(c.message) || err != nil {
				t.Errorf("it takes %d bytes, %v", n, err)
			}
			if got := strings.Contains(text(), "a client refuses"); got != c.want {
				t.Errorf("it is told: %v, want %v", got, c.want)
			}
		})
	}
}

// A certificate that Rust's TLS does not take is told of when it is read.
func TestCertificateOfAnAuthorityIsTold(t *testing.T) {
	for _, authority := range []bool{true, false} {
		text := logged(t)
		certFile, keyFile, _ := writeCertificateOf(t, t.TempDir(), "test", 1, authority)
		c, err := OpenCertificate(certFile, keyFile)
		if err != nil {
			t.Fatal(err)
		}
		if told := strings.Contains(text(), "CA:FALSE"); told != authority {
			t.Errorf("of an authority %v: told %v", authority, told)
		}
		text = logged(t)
		writeCertificateOf(t, strings.TrimSuffix(certFile, "/cert.pem"), "test", 2, !authority)
		c.mu.Lock()
		c.look()
		c.mu.Unlock()
		if told := strings.Contains(text(), "CA:FALSE"); told == authority {
			t.Errorf("changed from that of an authority %v: told %v", authority, told)
		}
	}
}

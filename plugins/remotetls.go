package plugins

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
)

// TLSFiles name the PEM files of one side of a connection between machines: its certificate, with those between it and its authority, its private key, and the authority of the other side. They are read anew for each connection, so
// that renewed ones are used. Both sides speak TLS 1.3 and show certificates. The zero value stands for no TLS.
type TLSFiles struct {
	Cert, Key, CA string
}

// Used tells whether there is TLS.
func (f TLSFiles) Used() bool { return f != TLSFiles{} }

func (f TLSFiles) read() (tls.Certificate, *x509.CertPool, error) {
	certificate, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return certificate, nil, fmt.Errorf("certificate %s with key %s: %w", f.Cert, f.Key, err)
	}
	text, err := os.ReadFile(f.CA)
	if err != nil {
		return certificate, nil, fmt.Errorf("authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return certificate, nil, fmt.Errorf("authority: %s has no certificate in PEM", f.CA)
	}
	return certificate, pool, nil
}

// Client is the configuration of the side that connects, to a server whose certificate is for that host.
func (f TLSFiles) Client(host string) (*tls.Config, error) {
	certificate, pool, err := f.read()
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}, RootCAs: pool, ServerName: host}, nil
}

// server is the configuration of the side that listens. Whoever connects shows a certificate of the authority.
func (f TLSFiles) server() (*tls.Config, error) {
	if _, _, err := f.read(); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		certificate, pool, err := f.read()
		if err != nil {
			return nil, err
		}
		return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{certificate}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}, nil
	}}, nil
}

// CheckAddress refuses an address that is not HOST:PORT, or that other machines are in reach of without TLS.
func CheckAddress(address string, secure bool) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not HOST:PORT", address)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%q is not HOST:PORT: the port is a number from 0 to 65535", address)
	}
	if ip, err := netip.ParseAddr(host); secure || host == "localhost" || err == nil && ip.IsLoopback() {
		return nil
	}
	return errors.New(address + " can be reached from other machines: it needs a certificate, its key, and the authority of the other side's")
}

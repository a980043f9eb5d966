package server

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

const (
	// recheckCertificate is how often a changed certificate is looked for, at most.
	recheckCertificate = time.Second
	maxCertificate     = 1 << 20 // bytes of a file
)

// Certificate is what the server proves with who it is. It follows its files: a connection that begins a second after they were changed has what is in them, those that are there go on as they are.
// Files that cannot be used leave the certificate that was known before in force, which the log says once.
type Certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	current *tls.Certificate
	read    [2][]byte // the files, as they were looked at last
	checked time.Time
	fault   string // why they could not be used last, as it was logged
}

// OpenCertificate reads a certificate and its private key, both in PEM. The log has a warning about one that clients are known to refuse.
func OpenCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, checked: time.Now()}
	var err error
	if c.current, c.read, err = c.load(); err != nil {
		return nil, err
	}
	c.advise(c.current)
	return c, nil
}

// advise says what clients will not like about a certificate.
func (c *Certificate) advise(pair *tls.Certificate) {
	if pair.Leaf.IsCA {
		slog.Warn("the certificate is that of an authority: clients whose TLS is written in Rust, the Tinker SDK 0.38 among them, refuse it and wait without a word; "+
			"make one with basicConstraints=critical,CA:FALSE (openssl req -x509 takes it by -addext), or have it signed by an authority", "file", c.certFile)
	}
}

// Expires is the end of the certificate's time.
func (c *Certificate) Expires() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current.Leaf.NotAfter
}

func (c *Certificate) load() (*tls.Certificate, [2][]byte, error) {
	files, err := c.contents()
	if err != nil {
		return nil, files, err
	}
	pair, err := c.parse(files)
	return pair, files, err
}

func (c *Certificate) contents() (files [2][]byte, err error) {
	for i, f := range [2]struct{ key, path string }{{"tls.cert_file", c.certFile}, {"tls.key_file", c.keyFile}} {
		if files[i], err = readBounded(f.path); err != nil {
			return files, fmt.Errorf("%s: %w", f.key, err)
		}
	}
	return files, nil
}

func (c *Certificate) parse(files [2][]byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(files[0], files[1])
	if err != nil {
		return nil, fmt.Errorf("tls: %s and %s cannot be used together: %w", c.certFile, c.keyFile, err)
	}
	if pair.Leaf == nil {
		return nil, errors.New("tls: the certificate was not read")
	}
	return &pair, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxCertificate+1))
	if err == nil && len(b) > maxCertificate {
		err = fmt.Errorf("%s has more than %d bytes", path, maxCertificate)
	}
	return b, err
}

// get is the certificate for a connection that begins.
func (c *Certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checked) >= recheckCertificate {
		c.look()
	}
	return c.current, nil
}

// look reads the files if they have changed. mu is held.
func (c *Certificate) look() {
	c.checked = time.Now()
	files, err := c.contents()
	if err == nil && bytes.Equal(files[0], c.read[0]) && bytes.Equal(files[1], c.read[1]) {
		return
	}
	var pair *tls.Certificate
	if err == nil {
		c.read = files
		pair, err = c.parse(files)
	}
	if err == nil {
		c.current, c.fault = pair, ""
		slog.Info("the changed certificate is in use", "file", c.certFile, "expires", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
		c.advise(pair)
		return
	}
	if fault := err.Error(); fault != c.fault {
		c.fault = fault
		slog.Warn("the changed certificate cannot be used: the one known before stays in force", "error", err)
	}
}

func (c *Certificate) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get, NextProtos: []string{"h2", "http/1.1"}}
}

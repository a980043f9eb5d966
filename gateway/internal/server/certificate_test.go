package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// writeCertificate makes a certificate of 127.0.0.1 that signs itself, and puts it and its key into two files.
func writeCertificate(t testing.TB, dir, name string, serial int64) (certFile, keyFile string, cert *x509.Certificate) {
	t.Helper()
	return writeCertificateOf(t, dir, name, serial, false)
}

// writeCertificateOf is writeCertificate, also of an authority.
func writeCertificateOf(t testing.TB, dir, name string, serial int64, authority bool) (certFile, keyFile string, cert *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: authority, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile, cert
}

// secured serves a handler with a certificate.
func secured(t *testing.T, c *Certificate, h http.Handler) (address string) {
	t.Helper()
	l, err := Listen(t.Context(), "127.0.0.1:0", "https")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, c, h) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// trusting is a client that believes some certificates.
func trusting(http2 bool, certs ...*x509.Certificate) (*http.Client, func()) {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: http2}
	if !http2 {
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	return &http.Client{Transport: transport}, transport.CloseIdleConnections
}

// serial is that of the certificate that a new connection is shown.
func serial(t *testing.T, address string) int64 {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // what it is is looked at here
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

// lookNow has the next connection look at the files.
func (c *Certificate) lookNow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checked = time.Time{}
}

func TestServesHTTPS(t *testing.T) {
	certFile, keyFile, cert := writeCertificate(t, t.TempDir(), "one", 1)
	c, err := OpenCertificate(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	address := secured(t, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }))
	for _, want := range []string{"HTTP/2.0", "HTTP/1.1"} {
		client, end := trusting(want == "HTTP/2.0", cert)
		defer end()
		answer, err := client.Get("https://" + address)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %s", got, err, want)
		}
	}
	old := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10} //nolint:gosec // what must not work
	if conn, err := tls.Dial("tcp", address, old); err == nil {
		conn.Close()
		t.Error("TLS 1.1 is spoken")
	}
}

// While the files are replaced, broken and mended, no request fails: streams go on as they were, and new connections have the last certificate that could be used.
func TestCertificateIsSwappedUnderLoad(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile, first := writeCertificate(t, dir, "one", 1)
	c, err := OpenCertificate(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	address := secured(t, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/stream" {
			fmt.Fprint(w, "ok")
			return
		}
		fmt.Fprint(w, "begin ")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
		fmt.Fprint(w, "end")
	}))
	other := t.TempDir()
	_, _, second := writeCertificate(t, other, "two", 2)

	streaming, end := trusting(true, first)
	defer end()
	stream, err := streaming.Get("https://" + address + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()

	stop := make(chan struct{})
	var load sync.WaitGroup
	var answered atomic.Int64
	for range 4 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				client, end := trusting(true, first, second) // a connection of its own
				answer, err := client.Get("https://" + address)
				if err != nil {
					t.Errorf("a request while the certificate is swapped: %v", err)
					return
				}
				if b, err := io.ReadAll(answer.Body); string(b) != "ok" {
					t.Errorf("answered %q, %v", b, err)
				}
				answer.Body.Close()
				end()
				answered.Add(1)
			}
		})
	}
	copyFile := func(name string) {
		b, err := os.ReadFile(filepath.Join(other, name))
		if err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Error(err)
		}
	}
	for _, step := range []struct {
		name string
		do   func()
		want int64
	}{
		{"nothing", func() {}, 1},
		{"a certificate without its key", func() { copyFile("cert.pem") }, 1},
		{"the key as well", func() { copyFile("key.pem") }, 2},
		{"a broken certificate", func() { _ = os.WriteFile(certFile, []byte("-----BEGIN"), 0o600) }, 2},
		{"none", func() { _ = os.Remove(certFile) }, 2},
		{"a huge one", func() { _ = os.WriteFile(certFile, make([]byte, maxCertificate+1), 0o600) }, 2},
		{"mended", func() { copyFile("cert.pem"); copyFile("key.pem") }, 2},
	} {
		before := answered.Load()
		step.do()
		c.lookNow()
		if got := serial(t, address); got != step.want {
			t.Errorf("%s: new connections have certificate %d, want %d", step.name, got, step.want)
		}
		for answered.Load() == before && !t.Failed() {
			time.Sleep(time.Millisecond)
		}
	}
	close(stop)
	load.Wait()
	close(release)
	if b, err := io.ReadAll(stream.Body); err != nil || string(b) != "begin end" {
		t.Errorf("the stream that was there all the time: %q, %v", b, err)
	}
}

func TestBadCertificates(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	certFile, keyFile, _ := writeCertificate(t, dir, "one", 1)
	_, foreign, _ := writeCertificate(t, other, "two", 2)
	for _, c := range []struct{ name, cert, key, want string }{
		{"no certificate", filepath.Join(dir, "none"), keyFile, "tls.cert_file"},
		{"no key", certFile, filepath.Join(dir, "none"), "tls.key_file"},
		{"another's key", certFile, foreign, "cannot be used together"},
		{"the other way round", keyFile, certFile, "cannot be used together"},
		{"a folder", dir, keyFile, "tls.cert_file"},
	} {
		if _, err := OpenCertificate(c.cert, c.key); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

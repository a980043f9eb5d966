// Package buckettest gives tests a bucket: that of TINSMITH_S3, which is a URL as http://ACCESS:SECRET@HOST:PORT/BUCKET of any server with the S3 API, or else one of a server of its own, which has what the package bucket
// asks for and checks the signatures of requests' headers. It can be broken.
package buckettest

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/md5" //nolint:gosec // entity tags are such sums
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	accessKey = "test-access"
	secretKey = "test-secret"
)

// Server is a bucket of a test, under a prefix of its own.
type Server struct {
	URL, Bucket, Prefix, AccessKey, SecretKey string

	away atomic.Bool
	// Objects are those of the server of our own, nil with another one.
	Objects *Objects
}

// Objects are a bucket in memory.
type Objects struct {
	mu   sync.Mutex
	held map[string][]byte
}

// New gives a bucket. What the test leaves in that of TINSMITH_S3 stays there.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{Prefix: prefix(), AccessKey: accessKey, SecretKey: secretKey, Bucket: "tinsmith"}
	var handler http.Handler
	if text := os.Getenv("TINSMITH_S3"); text != "" {
		s = At(t, text)
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		handler = &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { // signatures are of the host's name
			r.Out.URL.Scheme, r.Out.URL.Host = u.Scheme, u.Host
			r.Out.Host = r.In.Host
		}}
	} else {
		s.Objects = &Objects{held: map[string][]byte{}}
		handler = http.HandlerFunc(s.Objects.serve)
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.away.Load() {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	s.URL = front.URL
	return s
}

// At is the bucket of an URL like that of TINSMITH_S3, with nothing in between that could be broken.
func At(t testing.TB, text string) *Server {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil || u.User == nil {
		t.Fatalf("TINSMITH_S3 is not http://ACCESS:SECRET@HOST:PORT/BUCKET: %v", err)
	}
	s := &Server{URL: u.Scheme + "://" + u.Host, Prefix: prefix(), AccessKey: u.User.Username(), Bucket: strings.Trim(u.Path, "/")}
	s.SecretKey, _ = u.User.Password()
	return s
}

// prefix is one that no other test has.
func prefix() string { return "test-" + strings.ToLower(rand.Text()) }

// Away has every request fail, or none again.
func (s *Server) Away(away bool) { s.away.Store(away) }

// KeyFile writes the file that a configuration names.
func (s *Server) KeyFile(t testing.TB, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "s3-keys")
	if err := os.WriteFile(file, []byte(s.AccessKey+"\n"+s.SecretKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Names lists the objects.
func (o *Objects) Names() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var names []string
	for name := range o.held {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Change replaces the content of an object; nil removes it.
func (o *Objects) Change(name string, change func([]byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if b := change(slices.Clone(o.held[name])); b == nil {
		delete(o.held, name)
	} else {
		o.held[name] = b
	}
}

func (o *Objects) serve(w http.ResponseWriter, r *http.Request) {
	if !signed(r) {
		refuse(w, http.StatusForbidden, "SignatureDoesNotMatch")
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if bucket != "tinsmith" {
		refuse(w, http.StatusNotFound, "NoSuchBucket")
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	content, there := o.held[key]
	switch {
	case key == "" && r.Method == http.MethodGet && r.URL.Query().Has("location"):
		fmt.Fprint(w, `<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/"></LocationConstraint>`)
	case key == "" && r.Method == http.MethodGet:
		o.list(w, r.URL.Query().Get("prefix"))
	case key == "" && r.Method == http.MethodHead:
	case r.Method == http.MethodPut:
		b, err := body(r)
		if err != nil {
			refuse(w, http.StatusBadRequest, "IncompleteBody")
			return
		}
		o.held[key] = b
		w.Header().Set("ETag", tag(b))
	case r.Method == http.MethodDelete:
		delete(o.held, key)
		w.WriteHeader(http.StatusNoContent)
	case !there:
		refuse(w, http.StatusNotFound, "NoSuchKey")
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		w.Header().Set("ETag", tag(content))
		http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(content))
	default:
		refuse(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

func refuse(w http.ResponseWriter, code int, name string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(code)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", name, name)
}

func tag(b []byte) string {
	sum := md5.Sum(b) //nolint:gosec // that is what they are
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// list answers a whole listing. mu is held.
func (o *Objects) list(w http.ResponseWriter, prefix string) {
	type contents struct {
		Key, ETag, LastModified string
		Size                    int
	}
	var result struct {
		XMLName      xml.Name `xml:"ListBucketResult"`
		EncodingType string
		KeyCount     int
		Contents     []contents
	}
	result.EncodingType = "url"
	for key, b := range o.held {
		if strings.HasPrefix(key, prefix) {
			result.Contents = append(result.Contents, contents{url.QueryEscape(key), tag(b), "2026-01-01T00:00:00.000Z", len(b)})
		}
	}
	slices.SortFunc(result.Contents, func(a, b contents) int { return strings.Compare(a.Key, b.Key) })
	result.KeyCount = len(result.Contents)
	_ = xml.NewEncoder(w).Encode(result)
}

// body reads what is put, which may come in chunks with a signature each.
func body(r *http.Request) ([]byte, error) {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return io.ReadAll(r.Body)
	}
	var out []byte
	in := bufio.NewReader(r.Body)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		text, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		size, err := strconv.ParseUint(text, 16, 32)
		if err != nil {
			return nil, err
		}
		if size == 0 {
			_, err := io.Copy(io.Discard, in) // what follows are sums
			return out, err
		}
		chunk := make([]byte, size+2)
		if _, err := io.ReadFull(in, chunk); err != nil {
			return nil, err
		}
		out = append(out, chunk[:size]...)
	}
}

// signed checks the signature (AWS Signature Version 4) of the headers.
func signed(r *http.Request) bool {
	fields := map[string]string{}
	rest, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	for part := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		fields[name] = value
	}
	scope := strings.Split(fields["Credential"], "/")
	if !ok || len(scope) != 5 || scope[0] != accessKey {
		return false
	}
	var headers strings.Builder
	for name := range strings.SplitSeq(fields["SignedHeaders"], ";") {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = strconv.FormatInt(r.ContentLength, 10)
		}
		fmt.Fprintf(&headers, "%s:%s\n", name, strings.TrimSpace(value))
	}
	query := strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20")
	canonical := strings.Join([]string{r.Method, r.URL.EscapedPath(), query, headers.String(), fields["SignedHeaders"], r.Header.Get("X-Amz-Content-Sha256")}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	text := strings.Join([]string{"AWS4-HMAC-SHA256", r.Header.Get("X-Amz-Date"), strings.Join(scope[1:], "/"), hex.EncodeToString(sum[:])}, "\n")
	key := []byte("AWS4" + secretKey)
	for _, part := range append(scope[1:], text) {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(part))
		key = h.Sum(nil)
	}
	return hmac.Equal([]byte(hex.EncodeToString(key)), []byte(fields["Signature"]))
}

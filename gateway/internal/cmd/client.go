package cmd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// connection is how the client commands reach a server.
type connection struct {
	url, key string
	ca       string // file with the certificates that are trusted; "" = the system's
}

// addConnection adds the flags of a client command.
func addConnection(c *cobra.Command) *connection {
	conn := &connection{}
	c.Flags().StringVar(&conn.url, "url", "", "server (default: $TINSMITH_URL, else http://127.0.0.1:8000)")
	c.Flags().StringVar(&conn.key, "key", "", "API key (default: $TINKER_API_KEY)")
	c.Flags().StringVar(&conn.ca, "ca", "", "of an https server: a file with its authority's certificate, or with its own (default: $TINSMITH_CA, else the system's)")
	c.PreRunE = func(*cobra.Command, []string) error {
		if conn.url == "" {
			conn.url = os.Getenv("TINSMITH_URL")
		}
		if conn.url == "" {
			conn.url = "http://127.0.0.1:8000"
		}
		if conn.key == "" {
			conn.key = os.Getenv("TINKER_API_KEY")
		}
		if u, err := url.Parse(conn.url); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("--url: %q is not an http or https URL, such as http://127.0.0.1:8000", conn.url)
		}
		conn.url = strings.TrimSuffix(conn.url, "/")
		if conn.ca == "" {
			conn.ca = os.Getenv("TINSMITH_CA")
		}
		return trust(conn.ca)
	}
	return conn
}

// client follows no redirection: the server has none, and the key would go along to wherever it leads.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// trust has client believe the certificates of a file, and no others; "" = the system's.
func trust(file string) error {
	if file == "" {
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("--ca: %w", err)
	}
	defer f.Close()
	pem, err := io.ReadAll(io.LimitReader(f, 16<<20))
	if err != nil {
		return fmt.Errorf("--ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("--ca: %s has no certificate in PEM", file)
	}
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return errors.New("--ca: the transport of this program takes no certificates")
	}
	transport = transport.Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	client.Transport = transport
	return nil
}

// undirected is client for the OpenAI library, which takes a redirection for a good answer.
type undirected struct{}

// Do implements openai.HTTPDoer.
func (undirected) Do(r *http.Request) (*http.Response, error) {
	res, err := client.Do(r)
	if err == nil && res.StatusCode >= 300 && res.StatusCode < 400 {
		res.Body.Close()
		return nil, fmt.Errorf("%s %s: %s: redirections are not followed; give the address that it leads to with --url", r.Method, r.URL.Path, res.Status)
	}
	return res, err
}

// call sends a request and decodes the JSON answer.
func (conn *connection) call(ctx context.Context, method, path string, body io.Reader, into any) error {
	res, err := conn.send(ctx, method, path, body, "")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// open asks for something that is read as it comes: of a file a part, "bytes=FROM-TO", or all, "". The caller closes the body.
func (conn *connection) open(ctx context.Context, path, part string) (*http.Response, error) {
	return conn.send(ctx, http.MethodGet, path, nil, part)
}

// maxAnswer bounds an answer that is read as a whole.
const maxAnswer = 64 << 20

// ask sends a request and gives whatever the answer is.
func (conn *connection) ask(ctx context.Context, method, path string, body io.Reader, part string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, conn.url+path, body)
	if err != nil {
		return nil, err
	}
	if conn.key != "" {
		req.Header.Set("X-API-Key", conn.key)
	}
	if part != "" {
		req.Header.Set("Range", part)
	}
	res, err := client.Do(req)
	if err != nil {
		var unknown x509.UnknownAuthorityError
		if errors.As(err, &unknown) {
			return nil, fmt.Errorf("the server's certificate is signed by nobody who is known here: give its authority's, or the server's own, with --ca FILE: %w", err)
		}
		return nil, fmt.Errorf("is the server running? %w", err)
	}
	return res, nil
}

// send gives a good answer; another is an error with what the server says.
func (conn *connection) send(ctx context.Context, method, path string, body io.Reader, part string) (*http.Response, error) {
	res, err := conn.ask(ctx, method, path, body, part)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK || part != "" && res.StatusCode == http.StatusPartialContent {
		return res, nil
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	var said struct {
		Detail string `json:"detail"`
		Error  struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	_ = json.Unmarshal(b, &said)
	text := said.Detail
	if text == "" {
		text = said.Error.Message
	}
	if text == "" {
		text = strings.TrimSpace(string(b[:min(len(b), 500)]))
	}
	path, _, _ = strings.Cut(path, "?") // what a person typed is in the text
	return nil, &badAnswer{res.StatusCode, fmt.Sprintf("%s %s: %s: %s", method, path, res.Status, text)}
}

// badAnswer is what a server said in place of what was asked for.
type badAnswer struct {
	status int
	text   string
}

func (e *badAnswer) Error() string { return e.text }

// tellTroubles gives the server's health, and writes a line for every model that does not answer as it should, and one for the store: who lists what there is wants to know. A server that does not say is none of its business.
func tellTroubles(ctx context.Context, conn *connection, w io.Writer) (health serverHealth) {
	res, err := conn.ask(ctx, http.MethodGet, "/healthz", nil, "")
	if err != nil {
		return health
	}
	defer res.Body.Close()
	if json.NewDecoder(io.LimitReader(res.Body, 4<<20)).Decode(&health) != nil { // it has the same form with status 503
		return serverHealth{}
	}
	tell := func(what, state, reason string) {
		if state == "ready" || state == "ok" || state == "" {
			return
		}
		if reason != "" {
			state += ": " + reason
		}
		fmt.Fprintln(w, printable(what+" is "+state))
	}
	tell("the store", health.Storage.State, health.Storage.Reason)
	for _, m := range health.Models {
		tell("model "+m.Name, m.State, m.Reason)
	}
	return health
}

// serverHealth is what commands show of /healthz.
type serverHealth struct {
	Storage struct{ State, Reason string }
	Models  []struct{ Name, State, Reason, Products string }
}

// products says how the devices of a model multiply; "" where the server does not.
func (h *serverHealth) products(model string) string {
	for _, m := range h.Models {
		if m.Name == model {
			return m.Products
		}
	}
	return ""
}

// since writes how long ago a time was, in at most seven characters.
func since(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
	return fmt.Sprintf("%.0f d", d.Hours()/24)
}

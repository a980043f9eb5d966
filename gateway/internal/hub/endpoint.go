package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Bounds of what a hub may answer, and how long it may take.
const (
	defaultEndpoint  = "https://huggingface.co"
	maxListBytes     = 16 << 20
	maxFiles         = 10_000
	maxToken         = 4 << 10
	maxSaid          = 500 // bytes of a refusal that are shown
	maxAttempts      = 5
	maxPause         = time.Minute
	stalledAfter     = time.Minute // without a byte
	responseDeadline = 30 * time.Second
	uploadDeadline   = 5 * time.Minute // a hub answers when it has put the parts of a file together
)

// firstPause is before the second attempt; each further one is twice as long. Tests have less patience.
var firstPause = time.Second

// The clients have no timeout of their own: model files take hours on slow lines. Answers that never begin and bodies that stall are ended instead.
var (
	client   = newClient(responseDeadline)
	uploader = newClient(uploadDeadline)
)

func newClient(deadline time.Duration) *http.Client {
	return &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: deadline, TLSHandshakeTimeout: responseDeadline, ForceAttemptHTTP2: true},
		CheckRedirect: redirect,
	}
}

// redirect follows a hub to where it keeps a file, without the token: the standard client would send that to subdomains too. A request that would become another one, and one that would leave TLS, are not followed.
func redirect(req *http.Request, via []*http.Request) error {
	first := via[0]
	if len(via) >= 10 {
		return errors.New("too many redirections")
	}
	if req.Method != first.Method {
		return http.ErrUseLastResponse
	}
	if first.URL.Scheme == "https" && req.URL.Scheme != "https" {
		return errors.New("the hub redirects from https to an address without TLS")
	}
	if !sameOrigin(req.URL, first.URL) {
		req.Header.Del("Authorization")
	}
	return nil
}

func sameOrigin(a, b *url.URL) bool { return a.Scheme == b.Scheme && strings.EqualFold(a.Host, b.Host) }

// endpointOf is the hub that HF_ENDPOINT names, or the usual one, without a slash at the end.
func endpointOf() (string, error) {
	endpoint := strings.TrimSuffix(cmp.Or(os.Getenv("HF_ENDPOINT"), defaultEndpoint), "/")
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("HF_ENDPOINT: it must be the address of a hub, such as " + defaultEndpoint + ", with no user, query or fragment")
	}
	return endpoint, nil
}

// token is HF_TOKEN, or what the token file has in it where Hugging Face's own tools keep theirs; "" without one.
func token() string {
	if t := strings.TrimSpace(os.Getenv("HF_TOKEN")); t != "" {
		return t
	}
	file := os.Getenv("HF_TOKEN_PATH")
	if file == "" {
		file = filepath.Join(homeDir(), "token")
	}
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// statusError is an answer other than success.
type statusError struct {
	code  int
	text  string
	after time.Duration // which the hub asks to wait
}

func (e *statusError) Error() string { return e.text }

// request is one request to a hub, or to where a hub says that a file goes.
type request struct {
	method, url string
	header      map[string]string
	body        func() io.Reader // nil: none. It is called once for each time that the body is sent
	length      int64            // of the body
	token       bool             // the token goes along if the url is the endpoint's
}

// send gives a good answer, whose body the caller closes. Errors name the host alone: what else an address has in it may be a permission.
func send(ctx context.Context, c *http.Client, r request) (*http.Response, error) {
	var body io.Reader
	if r.body != nil {
		body = r.body()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, r.url, body)
	if err != nil {
		return nil, errors.New("the hub gives an address that is none")
	}
	if r.body != nil {
		req.ContentLength = r.length
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(r.body()), nil }
	}
	req.Header.Set("User-Agent", "tinsmith")
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	if r.token {
		endpoint, err := endpointOf()
		if err != nil {
			return nil, err
		}
		home, err := url.Parse(endpoint)
		if t := token(); err == nil && t != "" && sameOrigin(req.URL, home) {
			req.Header.Set("Authorization", "Bearer "+t)
		}
	}
	res, err := c.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = fmt.Errorf("%s to %s: %w", r.method, req.URL.Host, u.Err)
		}
		return nil, err
	}
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	return nil, refusal(res, said)
}

// refusal says what a hub answered, in its own words where it has some.
func refusal(res *http.Response, body []byte) *statusError {
	e := &statusError{code: res.StatusCode, text: "the hub answers " + res.Status}
	var said struct {
		Error   string `json:"error"`
		Message string `json:"message"`
		Errors  []struct {
			Message string `json:"message"`
		} `json:"errors"`
	}
	_ = json.Unmarshal(body, &said)
	if len(said.Errors) > 0 {
		said.Message = said.Errors[0].Message
	}
	if why := cmp.Or(res.Header.Get("X-Error-Message"), said.Error, said.Message); why != "" {
		e.text += ": " + why[:min(len(why), maxSaid)]
	}
	switch res.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		e.text += ": the repository is private or gated, or the token may not do this; accept its terms and set HF_TOKEN"
	case http.StatusNotFound:
		e.text += ": there is no such repository, revision or file"
	}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.after = min(time.Duration(min(seconds, 3600))*time.Second, maxPause)
	}
	return e
}

// passing tells whether the same request may succeed later.
func passing(err error) bool {
	var status *statusError
	return !errors.As(err, &status) || status.code >= 500 || status.code == http.StatusTooManyRequests || status.code == http.StatusRequestTimeout
}

// repeated calls do until it succeeds, says that another attempt does not help, or has failed maxAttempts times.
func repeated(ctx context.Context, do func() (again bool, err error)) error {
	pause := firstPause
	for attempt := 1; ; attempt++ {
		again, err := do()
		if err == nil || !again || attempt == maxAttempts || ctx.Err() != nil {
			return err
		}
		wait := pause
		var status *statusError
		if errors.As(err, &status) {
			wait = max(wait, status.after)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
		pause *= 2
	}
}

// get asks for a document from a byte on.
func get(ctx context.Context, source string, from int64) (*http.Response, error) {
	r := request{method: http.MethodGet, url: source, token: true}
	if from > 0 {
		r.header = map[string]string{"Range": fmt.Sprintf("bytes=%d-", from)}
	}
	return send(ctx, client, r)
}

// readJSON decodes an answer of at most maxListBytes, and closes it.
func readJSON(res *http.Response, into any) error {
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxListBytes+1))
	if err != nil {
		return err
	}
	if len(b) > maxListBytes {
		return fmt.Errorf("the hub's answer has more than %d bytes", maxListBytes)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("the hub's answer: %w", err)
	}
	return nil
}

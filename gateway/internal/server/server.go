// Package server puts the HTTP server together: connections and their limits, middleware, health, metrics, and the routes of the APIs. It knows no resource of
// any API.
package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/contrib/instrumentation/github.com/gin-gonic/gin/otelgin"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
	"github.com/tinsmith/tinsmith/gateway/internal/telemetry"
)

// Limits of connections. Bodies and answers have none of the whole time, but a pace.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
	drainTimeout      = 5 * time.Second
)

// Health is the answer of /healthz.
type Health struct {
	// Status is "ok", "damaged" where all but some of what is kept is well, or with status code 503 "starting", "degraded" or "standby", of a gateway that waits until another one is gone.
	Status  string  `json:"status"`
	Version string  `json:"version"`
	Storage Storage `json:"storage"`
	Models  []Model `json:"models"`
	Open    bool    `json:"-"` // the APIs answer, however well
}

// ready is the status of /readyz.
func (h Health) ready() int {
	if h.Open || h.Status == "standby" {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

// code is the answer's status: whoever starts servers again that are not well is not to do so for what a start does not mend.
func (h Health) code() int {
	if h.Status == "ok" || h.Status == "damaged" {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

// Storage is the state of the data directory and the database.
type Storage struct {
	State  string `json:"state"`            // ok, starting, standby, full, read-only, locked, failing, damaged
	Reason string `json:"reason,omitempty"` // why it is not ok
}

// Model is the state of one served model.
type Model struct {
	Name     string  `json:"name"`
	State    string  `json:"state"`              // downloading, starting, loading, ready, rebuilding, hanging, restarting, failed
	Progress float64 `json:"progress,omitempty"` // 0 … 1 while downloading or loading
	Reason   string  `json:"reason,omitempty"`   // why it is not ready, or why runs are not rebuilt yet
	Restarts int     `json:"restarts"`
	LastLoss string  `json:"last_loss,omitempty"` // why it was restarted last
	Device   string  `json:"device,omitempty"`
	DType    string  `json:"dtype,omitempty"`
	// Arithmetic is the identity of the arithmetic the model is computed with: under equal strings the same calls give the same bits.
	Arithmetic string `json:"arithmetic,omitempty"`
	// Products says by which of several ways with the same bits its devices multiply, and why not by others; for people to read.
	Products string `json:"products,omitempty"`
	// Memory is how the backend shares its memory out, the limit first; empty before it is loaded, and where it keeps no plan.
	Memory []Memory `json:"memory,omitempty"`
	// Rebuilding is there in the state rebuilding: the backend is ready, and runs are brought back to where they were. Everything else is served meanwhile, so that the status stays ok.
	Rebuilding *Rebuilding `json:"rebuilding,omitempty"`
	// Backends are those of a model that has several. Then it is ready when one of them is, and what stands above is the first ready one's.
	Backends []Backend `json:"backends,omitempty"`
}

// Backend is the state of one of a model's backends.
type Backend struct {
	Name       string  `json:"name"`
	State      string  `json:"state"` // as a model's, but for downloading and rebuilding
	Progress   float64 `json:"progress,omitempty"`
	Reason     string  `json:"reason,omitempty"`
	Restarts   int     `json:"restarts"`
	LastLoss   string  `json:"last_loss,omitempty"`
	Device     string  `json:"device,omitempty"`
	DType      string  `json:"dtype,omitempty"`
	Arithmetic string  `json:"arithmetic,omitempty"`
	Drained    bool    `json:"drained"`     // it gets nothing new, and its runs move to the others
	Runs       int     `json:"runs"`        // that live there
	ActiveRuns int     `json:"active_runs"` // of them: that have work, or had some a moment ago
	Leaving    int     `json:"leaving"`     // of them: that are moving elsewhere
	Samples    int     `json:"samples"`     // sequences that it was given to sample
}

// Memory is one line of a backend's plan of memory, in the backend's words.
type Memory struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"` // 0 = not known, or no limit
	Detail string `json:"detail"`
}

// told takes the place of a reason in the answer to who is no administrator.
const told = "an administrator's key is told why"

// public is what everybody may know: the states, and not the reasons, in which there are paths, the database's address, what plugins wrote, and names of what tenants have; nor why devices multiply as they do.
func (h Health) public() Health {
	if h.Storage.Reason != "" {
		h.Storage.Reason = told
	}
	h.Models = slices.Clone(h.Models)
	for i := range h.Models {
		m := &h.Models[i]
		m.Products = ""
		reasons := []*string{&m.Reason, &m.LastLoss}
		m.Backends = slices.Clone(m.Backends)
		for j := range m.Backends {
			reasons = append(reasons, &m.Backends[j].Reason, &m.Backends[j].LastLoss)
		}
		for _, reason := range reasons {
			if *reason != "" {
				*reason = told
			}
		}
	}
	return h
}

// Rebuilding is how far the rebuild of runs is.
type Rebuilding struct {
	Runs     int `json:"runs"`
	Replayed int `json:"operations_replayed"`
	ToReplay int `json:"operations_to_replay"`
}

// Options are the parts that the server puts together.
type Options struct {
	Version string
	Health  func() Health
	// Admin tells whether a request is an administrator's, who is told the reasons of what is not well; nil = none is. Everybody is where Keyless is set.
	Admin   func(*http.Request) bool
	Metrics http.Handler
	Meter   *Meter // records the requests; nil = nothing does
	Traces  bool   // make a span of every request: somebody takes them
	Routes  []func(gin.IRouter)
	Keyless bool // nobody is asked for a key: requests that web pages of elsewhere may have sent are refused
	// PublicURL is where the server is reached from elsewhere, as through a proxy; "" = nowhere. Web pages of its host may use the server.
	PublicURL string
	// Origins are those of further web pages that may read the answers; "*" = all. Empty where Keyless is set.
	Origins []string
	// Starting says why the APIs are not there yet; everything else is answered 503 with that. nil = they are there.
	Starting func() string
}

// New builds the handler of all routes.
func New(opts Options) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.ContextWithFallback = true // a gin.Context passed as context.Context carries the request's trace and end
	r.UseRawPath = true          // ids in paths may hold escaped slashes: /v1/models/tinker:%2F%2F…
	r.UnescapePathValues = true
	r.RedirectTrailingSlash = false
	r.HandleMethodNotAllowed = true
	if opts.Meter != nil {
		r.Use(opts.Meter.measure)
	}
	r.Use(recovery, requestID)
	if opts.Keyless {
		r.Use(onlyLocal(opts.PublicURL))
	}
	r.Use(shared(opts.PublicURL, opts.Origins))
	if opts.Traces {
		// A span has the path, and whoever reads spans is not to have what a signed link opens.
		traced := func(c *gin.Context) bool {
			return !unobserved(c.Request) && !strings.HasSuffix(c.FullPath(), "/:token")
		}
		r.Use(otelgin.Middleware(telemetry.ServiceName, otelgin.WithMeterProvider(noop.NewMeterProvider()), otelgin.WithGinFilter(traced)))
	}
	health := func(c *gin.Context) {
		h := opts.Health()
		code := h.code()
		if !opts.Keyless && (opts.Admin == nil || !opts.Admin(c.Request)) {
			h = h.public()
		}
		c.JSON(code, h)
	}
	r.GET("/healthz", health)
	// Platforms that replace gateways one by one ask whether the next one may be replaced: a standby does all that it is there for.
	r.GET("/readyz", func(c *gin.Context) {
		h := opts.Health()
		c.JSON(h.ready(), gin.H{"status": h.Status})
	})
	// Clients of other servers ask for the status alone.
	status := func(c *gin.Context) {
		c.Status(opts.Health().code())
	}
	r.GET("/health", status)
	r.GET("/ping", status)
	r.GET("/metrics", gin.WrapH(opts.Metrics))
	r.GET("/version", func(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"version": opts.Version}) })
	for _, register := range opts.Routes {
		register(r)
	}
	r.NoRoute(func(c *gin.Context) {
		if opts.Starting != nil {
			c.Header("Retry-After", "1")
			unknown(c, http.StatusServiceUnavailable, opts.Starting())
			return
		}
		unknown(c, http.StatusNotFound, "no such endpoint")
	})
	r.NoMethod(func(c *gin.Context) {
		unknown(c, http.StatusMethodNotAllowed, "this endpoint does not take that method")
	})
	return r
}

// unknown answers in a form that clients of either API understand.
func unknown(c *gin.Context, code int, text string) {
	text = fmt.Sprintf("%s: %s %.200s", text, c.Request.Method, c.Request.URL.Path)
	c.JSON(code, gin.H{"detail": text, "error": gin.H{"message": text, "type": "invalid_request_error", "param": nil, "code": nil}})
}

// recovery turns a panic of a handler into a 500 and a log line; a deliberately broken connection stays one.
func recovery(c *gin.Context) {
	defer func() {
		switch p := recover(); {
		case p == nil:
		case p == any(http.ErrAbortHandler):
			panic(p)
		default:
			slog.ErrorContext(c, "handler panicked", "path", c.FullPath(), "panic", p, "stack", string(debug.Stack()))
			if !c.Writer.Written() {
				unknown(c, http.StatusInternalServerError, "internal error")
			}
			c.Abort()
		}
	}()
	c.Next()
}

// requestID gives every answer an id; one that the client chose is kept.
func requestID(c *gin.Context) {
	id := c.GetHeader("X-Request-Id")
	if id == "" || len(id) > 200 {
		id = "req_" + rand.Text()
	}
	c.Header("X-Request-Id", id)
	c.Next()
}

// Listen opens the address and tells people where it is, in a line on standard error. The scheme is that of what is served there.
func Listen(ctx context.Context, address, scheme string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen: %w: another program listens there, which may be another tinsmith server; stop it, or take another address with --listen or listen: in the configuration (port 0 is a free one)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	fmt.Fprintf(os.Stderr, "listening on %s://%s\n", scheme, l.Addr())
	return l, nil
}

// WriteAddress tells programs where the server is, in the file `address` of the data directory, which belongs to the process that has the directory's lock.
func WriteAddress(scheme string, address net.Addr, dataDir string) error {
	path := filepath.Join(dataDir, "address")
	temporary := path + ".new"
	if err := os.WriteFile(temporary, []byte(scheme+"://"+address.String()+"\n"), 0o600); err != nil {
		return fmt.Errorf("write address: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("write address: %w", err)
	}
	return nil
}

// Address is what WriteAddress has left in a data directory, "" if nothing is there.
func Address(dataDir string) string {
	b, err := os.ReadFile(filepath.Join(dataDir, "address"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Serve answers on l until ctx ends; then open requests get a moment to finish. It bounds how many connections are open, and how slow they are. With a certificate it speaks HTTPS, in HTTP/2 and 1.1.
func Serve(ctx context.Context, l net.Listener, certificate *Certificate, handler http.Handler) error {
	return serve(ctx, newConnections(l, connectionLimit()), certificate, ordinary, handler)
}

// maxStreams is how many requests one connection of HTTP/2 may have at a time: the Tinker SDK waits for hundreds of results over one.
const maxStreams = 1000

func serve(ctx context.Context, l *connections, certificate *Certificate, p pace, handler http.Handler) error {
	held := ballast()
	defer runtime.KeepAlive(held)
	s := &http.Server{
		Handler: onlyHealth(p.keep(handler)), ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: p.pause, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: log.New(&connectionErrors{}, "", 0), ConnState: watch,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return body.WithConnection(ctx, underTLS(c)) },
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
	}
	failed := make(chan error, 1)
	go func() {
		if certificate == nil {
			failed <- s.Serve(l)
			return
		}
		s.TLSConfig = certificate.config()
		failed <- s.ServeTLS(l, "", "")
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	// Polls that are held would keep the server open for 30 s: their clients poll again, so they are cut after a moment.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	err := s.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.Close()
	}
	<-failed
	return err
}

// Package tinker serves the Tinker API under /api/v1, as the official Python SDK 0.3 to 0.38 calls it. A file holds the routes of one resource; each handler
// decodes a body, calls package runs, and encodes the answer. What differs between SDK versions is in generations.go and nowhere else. State, order
// and ownership are package runs'; bodies are package wire's.
package tinker

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// Prefix is where the API lives.
const Prefix = "/api/v1"

// hold is how long a poll waits for its result. The SDK gives up at 45 s and polls again at once after an answer.
const hold = 30 * time.Second

// Options are settings of the service.
type Options struct {
	PublicURL    string // base of absolute links; "" = taken from the request
	MaxPerClient int    // samples one client is told to keep in flight
	// Directories are the model directories by served name, for who merges an adapter or wants the tokenizer; nil = none is given out.
	Directories map[string]string
	// ClientFiles is a folder of the data directory for what clients on this machine are given to read; "" = there is none.
	ClientFiles string
}

// Service answers the Tinker API.
type Service struct {
	core *runs.Core
	auth *keys.Authenticator
	opts Options
}

// New makes a service over a core.
func New(core *runs.Core, auth *keys.Authenticator, opts Options) (*Service, error) {
	if opts.MaxPerClient < 1 {
		return nil, errors.New("tinker: MaxPerClient must be positive")
	}
	return &Service{core, auth, opts}, nil
}

// Register adds the routes.
func (s *Service) Register(r gin.IRouter) {
	g := r.Group(Prefix)
	g.GET("/healthz", s.open(s.healthz))
	// Links that were signed for one file need no key.
	g.GET("/files/:token", s.linked(s.files))
	g.GET("/archives/:token", s.linked(s.archives))
	g.GET("/traces/:token", s.linked(s.traces))

	g.POST("/client/config", s.auths(s.clientConfig))
	g.POST("/client/dynamic_config", s.auths(s.dynamicConfig))
	g.POST("/auth/token", s.auths(s.authToken))
	g.GET("/auth/apikey/me", s.auths(s.apiKey))
	g.DELETE("/auth/apikey/me", s.auths(s.revokeAPIKey))
	g.GET("/get_server_capabilities", s.auths(s.capabilities))
	g.POST("/telemetry", s.auths(s.telemetry))

	g.POST("/create_session", s.auths(s.createSession))
	g.POST("/session_heartbeat", s.auths(s.heartbeat))
	g.GET("/sessions", s.lists(s.listSessions))
	g.POST("/sessions/search", s.lists(s.searchSessions))
	g.GET("/sessions/:session", s.lists(s.getSession))
	g.POST("/sessions/:session/finish", s.auths(s.finishSession))
	g.PUT("/sessions/:session/project", s.auths(s.assignProject))
	g.GET("/sessions/:session/trace_export", s.auths(s.traceExport))

	g.POST("/create_model", s.auths(s.createModel))
	g.POST("/get_info", s.auths(s.getInfo))
	g.POST("/unload_model", s.auths(s.unloadModel))
	g.POST("/forward_backward", s.auths(s.forwardBackward))
	g.POST("/forward", s.auths(s.forward))
	g.POST("/optim_step", s.auths(s.optimStep))
	g.POST("/save_weights", s.auths(s.saveWeights))
	g.POST("/load_weights", s.auths(s.loadWeights))
	g.POST("/save_weights_for_sampler", s.auths(s.saveWeightsForSampler))
	g.POST("/save_weights_external", s.auths(s.saveWeightsExternal))
	g.POST("/create_custom_loss", s.auths(s.createCustomLoss))

	g.POST("/create_sampling_session", s.auths(s.createSamplingSession))
	g.POST("/join_sampling_session", s.auths(s.joinSamplingSession))
	g.GET("/samplers/:sampler", s.auths(s.getSampler))
	g.POST("/asample", s.auths(s.sample))
	g.POST("/retrieve_future", s.auths(s.retrieveFuture))
	g.POST("/retrieve_futures", s.auths(s.retrieveFutures))
	g.POST("/cancel_future", s.auths(s.cancelFuture))

	g.POST("/weights_info", s.auths(s.weightsInfo))
	g.POST("/copy_weights", s.auths(s.copyWeights))
	g.GET("/training_runs", s.lists(s.listRuns))
	g.GET("/training_runs/:run", s.auths(s.getRun))
	g.GET("/training_runs/:run/checkpoints", s.lists(s.listRunCheckpoints))
	const checkpoint = "/training_runs/:run/checkpoints/:kind/:name"
	g.DELETE(checkpoint, s.auths(s.deleteCheckpoint))
	g.GET(checkpoint+"/archive", s.auths(s.archive))
	g.POST(checkpoint+"/publish", s.auths(s.publish))
	g.DELETE(checkpoint+"/publish", s.auths(s.unpublish))
	g.PUT(checkpoint+"/ttl", s.auths(s.setTTL))
	g.GET(checkpoint+"/external_weights_urls", s.auths(s.externalURLs))
	g.DELETE("/training_runs/:run/checkpoints/:kind", s.auths(s.bareCheckpoint))
	g.GET("/training_runs/:run/checkpoints/:kind", s.auths(s.bareCheckpoint))
	g.GET("/models/:run/checkpoints", s.lists(s.listRunCheckpoints)) // 0.3.0
	g.GET("/checkpoints", s.lists(s.listCheckpoints))

	g.GET("/audit", s.lists(s.audit))
	g.GET("/billing/usage/events", s.lists(s.usageEvents))
	g.GET("/billing/usage/checkpoints/current", s.lists(s.checkpointStorage))

	// What only Tinsmith has.
	g.GET("/tinsmith/runs", s.lists(s.runStatuses))
	g.GET("/tinsmith/runs/:run", s.lists(s.overview))
	g.GET("/tinsmith/runs/:run/series", s.lists(s.series))
	g.GET("/tinsmith/runs/:run/cycles", s.lists(s.cycles))
	g.GET("/tinsmith/runs/:run/events", s.auths(s.seriesEvents))
	g.POST("/tinsmith/runs/:run/metrics", s.auths(s.addMetrics))
	g.GET("/tinsmith/events", s.auths(s.events))
	g.POST("/tinsmith/import", s.auths(s.importAdapter))
	g.GET("/tinsmith/imports", s.lists(s.imports))
	g.GET("/tinsmith/export", s.lists(s.exportAdapter))
	g.GET("/tinsmith/usage", s.lists(s.usageByDay))
	g.GET("/tinsmith/models/files", s.auths(s.modelFiles))
	g.GET("/tinsmith/environment", s.auths(s.environment))
	g.POST("/tinsmith/backends/drain", s.auths(s.drainBackend))
}

// call is one authenticated request. As a context it is the request's: gin uses its own for the next request while a database's goroutine may still ask whether this one has ended.
type call struct {
	*gin.Context
	request context.Context

	owner  string
	admin  bool        // an administrator's
	bearer keys.Bearer // stands for the caller's key in links
	claim  *body.Claim // what its body and its answer take
}

// Deadline, Done, Err and Value implement context.Context.
func (c call) Deadline() (time.Time, bool) { return c.request.Deadline() }

// Done is the end of the request.
func (c call) Done() <-chan struct{} { return c.request.Done() }

// Err tells whether it has ended.
func (c call) Err() error { return c.request.Err() }

// Value gives what it carries.
func (c call) Value(key any) any { return c.request.Value(key) }

// stream is an answer that writes itself; an error of it must come before its first byte.
type stream func(call) error

// handler answers a call: a value is sent as JSON, a protobuf, encodedJSON or a stream as such, nil as an empty success.
type handler func(call) (any, error)

// protobuf is an encoded protobuf message.
type protobuf []byte

// encodedJSON is a JSON document.
type encodedJSON []byte

// status is an answer with a status of its own.
type status struct {
	code int
	body any
}

// auths wraps a handler of a known caller.
func (s *Service) auths(h handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		r, err := s.auth.Begin(c.Writer, c.Request)
		if err != nil {
			unauthorized(c, keys.TellRefused(err))
			return
		}
		defer r.Release()
		c.Request = r.Request
		s.answer(c, h, call{Context: c, request: c.Request.Context(), owner: r.Owner, admin: r.Admin, bearer: r.Bearer})
	}
}

// unauthorized refuses a credential. The marker makes the SDK fetch a new token once, in case its token has expired.
func unauthorized(c *gin.Context, text string) {
	c.Header("WWW-Authenticate", `Bearer error="invalid_token"`)
	body.SendJSON(c.Writer, c.Request, http.StatusUnauthorized, gin.H{"detail": text}, internalErrorBody)
}

// lists wraps a handler whose answer may be large: of one caller only a few are made at a time.
func (s *Service) lists(h handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		var done func()
		defer func() {
			if done != nil {
				done()
			}
		}()
		s.auths(func(one call) (_ any, err error) {
			if done, err = s.core.AwaitList(one.Request.Context(), one.owner); err != nil {
				return nil, err
			}
			return h(one)
		})(c)
	}
}

// open wraps a handler that needs no caller.
func (s *Service) open(h handler) gin.HandlerFunc {
	return func(c *gin.Context) { s.answer(c, h, call{Context: c, request: c.Request.Context()}) }
}

func (s *Service) answer(c *gin.Context, h handler, from call) {
	claim := body.NewClaim(from.owner)
	defer claim.Release()
	from.claim = claim
	value, err := h(from)
	if err != nil {
		fail(c, err)
		return
	}
	switch v := value.(type) {
	case nil:
		c.Status(http.StatusNoContent)
		c.Writer.WriteHeaderNow()
	case protobuf:
		err = claim.Send(c.Writer, c.Request, http.StatusOK, protobufType, v)
	case encodedJSON:
		err = claim.Send(c.Writer, c.Request, http.StatusOK, jsonType, v)
	case stream:
		err = v(from)
	case status:
		err = sendJSON(c, claim, v.code, v.body)
	default:
		err = sendJSON(c, claim, http.StatusOK, v)
	}
	if err != nil { // there is no memory for the answer, and nothing of it was sent
		fail(c, err)
	}
}

func (s *Service) healthz(call) (any, error) { return gin.H{"status": "ok"}, nil }

package keys

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
)

// ErrRevoked is the cause of the end of a request's context when the key that it came with is not in the keys file any more.
var ErrRevoked = errors.New("the API key was revoked")

// lastWords is how long a connection of a revoked key stays open for an answer that says so.
const lastWords = 500 * time.Millisecond

// hold is something that ends with its key.
type hold struct {
	entry

	mu   sync.Mutex
	end  func(again bool) // called without the ring's lock; nil when it was let go
	over bool             // end was called
}

// letGo has the key's end do nothing more. It waits for an end that is just being made.
func (h *hold) letGo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end = nil
}

// endAll ends what has lost its key. What is not let go after that is ended again, at every look: a write that has begun meanwhile may have given itself more time.
func endAll(ended []*hold) {
	for _, h := range ended {
		h.mu.Lock()
		if h.end != nil {
			h.end(h.over)
			h.over = true
		}
		h.mu.Unlock()
	}
}

// ended finds what has lost its key. mu is held.
func (r *Ring) ended() []*hold {
	now := time.Now()
	if !r.changed && !r.overdue && !slices.ContainsFunc(r.entries, func(e entry) bool { return e.over(now) }) {
		return nil
	}
	var list []*hold
	for h := range r.held {
		if !slices.ContainsFunc(r.entries, func(e entry) bool { return h.is(e) && !e.over(now) }) {
			list = append(list, h)
		}
	}
	r.changed, r.overdue = false, len(list) > 0
	return list
}

// holdOn finds the entry that a condition chooses, or ErrUnknown, and has end called, maybe several times, when that entry is gone. The caller calls letGo when it needs no end any more.
// Without a keys file nothing ever ends, and letGo does nothing.
func (r *Ring) holdOn(chosen func(entry) bool, end func(again bool)) (e entry, letGo func(), err error) {
	if r.path == "" {
		return anyone, func() {}, nil
	}
	r.refresh()
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, err = r.choose(chosen); err != nil {
		return entry{}, nil, err
	}
	h := &hold{entry: e, end: end}
	if r.held == nil {
		r.held = map[*hold]bool{}
	}
	r.held[h] = true
	r.lookLater()
	return e, func() {
		r.mu.Lock()
		delete(r.held, h)
		r.mu.Unlock()
		h.letGo()
	}, nil
}

// lookLater has the file looked at once more after a while, as long as anything is held. mu is held.
func (r *Ring) lookLater() {
	if r.waiting || len(r.held) == 0 {
		return
	}
	r.waiting = true
	time.AfterFunc(recheck, func() {
		r.mu.Lock()
		r.look()
		ended := r.ended()
		r.waiting = false
		r.lookLater()
		r.mu.Unlock()
		endAll(ended)
	})
}

// Request is a request of somebody who is known.
type Request struct {
	*http.Request        // its context ends, with the cause ErrRevoked, when the key is revoked
	Owner         string // whose key it is
	Admin         bool   // it is an administrator's
	Bearer        Bearer // stands for the key in links
	release       func() // nil without a keys file
}

// Bearer is the key that a request came with.
type Bearer struct {
	of   *Authenticator // nil without a keys file
	hash [sha256.Size]byte
}

// Fingerprint stands for the key in links, see BeginLink; "" without a keys file. Few requests need it, and it takes some time to make.
func (b Bearer) Fingerprint() string {
	if b.of == nil {
		return ""
	}
	return b.of.Tokens.fingerprint(b.hash)
}

// Release has the request no longer end with its key. It must be called when it is answered, and not before. The connection of a revoked key is closed, whatever was answered: with http.ErrAbortHandler where the
// answer does not say so in its header Connection, for which it is too late in the middle of a stream.
func (r Request) Release() {
	if r.release != nil {
		r.release()
	}
}

// Begin finds who a request is from, or ErrUnknown. When the key is revoked, the request's context ends, its body can no longer be read, and what is not written to w within a moment never is, also when its
// client reads slowly.
func (a *Authenticator) Begin(w http.ResponseWriter, r *http.Request) (Request, error) {
	if !a.Ring.Required() {
		return anybody(r), nil
	}
	chosen, err := a.chosen(Credential(r.Header))
	if err != nil {
		return Request{}, err
	}
	return a.begin(w, r, chosen)
}

// BeginLink is Begin for a request that comes with a link instead of a key: bearer is that of the request by which the link was made, and owner its owner.
func (a *Authenticator) BeginLink(w http.ResponseWriter, r *http.Request, owner, bearer string) (Request, error) {
	if !a.Ring.Required() {
		return anybody(r), nil
	}
	return a.begin(w, r, a.Tokens.fingerprinted(owner, bearer))
}

// anybody's is a request without a keys file.
func anybody(r *http.Request) Request {
	return Request{Request: r, Owner: anyone.name, Admin: anyone.admin}
}

func (a *Authenticator) begin(w http.ResponseWriter, r *http.Request, chosen func(entry) bool) (Request, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	e, letGo, err := a.Ring.holdOn(chosen, func(again bool) {
		cancel(ErrRevoked)
		now := time.Now()
		connection := http.NewResponseController(w)
		// A connection that cannot have a deadline, as in a test without one, has nobody who could delay the end either.
		_ = connection.SetReadDeadline(now)
		if !again {
			now = now.Add(lastWords)
		}
		_ = connection.SetWriteDeadline(now)
	})
	if err != nil {
		cancel(nil)
		return Request{}, err
	}
	release := func() {
		letGo()
		revoked := Revoked(ctx)
		cancel(nil)
		if revoked && w.Header().Get("Connection") != "close" {
			// Its deadline for reading has ended the contexts of all requests to come.
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	made := ctx
	if !e.admin {
		made = context.WithValue(ctx, told{}, a)
	}
	return Request{Request: r.WithContext(made), Owner: e.name, Admin: e.admin, Bearer: Bearer{a, e.hash}, release: release}, nil
}

// told is the key of the Authenticator in the context of a request whose caller is no administrator.
type told struct{}

// TellFault gives what the caller of a request may be told of a fault of the server's: everything for an administrator and on a server without keys.
func TellFault(ctx context.Context, text string) string {
	if a, ok := ctx.Value(told{}).(*Authenticator); ok {
		return a.Redactor.Fault(text)
	}
	return text
}

// TellRequest is TellFault for what is wrong with the request itself.
func TellRequest(ctx context.Context, text string) string {
	if a, ok := ctx.Value(told{}).(*Authenticator); ok {
		return a.Redactor.Request(text)
	}
	return text
}

// Revoked tells whether a request's context has ended because its key was revoked.
func Revoked(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrRevoked) }

package selftest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Check is one promise, and how it stands.
type Check struct {
	Name    string `json:"name"`
	Promise string `json:"promise"`
	// Result is "passed", "differs", "failed" (it could not be carried out) or "skipped".
	Result string `json:"result"`
	// Compared is how many values were compared.
	Compared   int         `json:"compared"`
	Detail     string      `json:"detail,omitempty"`
	Difference *Difference `json:"difference,omitempty"` // of "differs": the first one
	Error      string      `json:"error,omitempty"`      // of "failed"
	Seconds    float64     `json:"seconds"`
}

// Results of a check.
const (
	passed  = "passed"
	differs = "differs"
	failed  = "failed"
	skipped = "skipped"
)

// Options say what a self-test does.
type Options struct {
	Server Server
	// Model is the name of the one model that the server serves.
	Model string
	// Dir is a folder for files.
	Dir string
	// Patience is how long the server may take to be ready again after a kill.
	Patience time.Duration
	// Reference is compared with; nil where there is none.
	Reference *Reference
	// Progress is told the name of a check before it begins, and Done the check when it has ended. They may be nil.
	Progress func(name string)
	Done     func(c *Check)
}

// promise is a check before it is made.
type promise struct {
	name, text string
	check      func(ctx context.Context, r *tally) (detail string, err error)
}

// Run makes all checks, one after the other, and goes on after one that differs or fails. The error is that of ctx, or of a server with which none can be made.
func Run(ctx context.Context, o Options) ([]Check, state, error) {
	c := &client{server: o.Server, model: o.Model, http: newHTTP(), patience: o.Patience}
	defer c.http.CloseIdleConnections()
	t, err := prepare(ctx, c)
	if err != nil {
		return nil, state{}, err
	}
	t.dir, t.reference = o.Dir, o.Reference
	h, err := health(ctx, c)
	if err != nil {
		return nil, state{}, err
	}
	var checks []Check
	for _, p := range t.promises() {
		if o.Progress != nil {
			o.Progress(p.name)
		}
		one := p.run(ctx)
		if ctx.Err() != nil {
			return nil, state{}, ctx.Err()
		}
		if o.Done != nil {
			o.Done(&one)
		}
		checks = append(checks, one)
	}
	return checks, h, nil
}

func (t *tests) promises() []promise {
	reference := promise{"reference", "the base model gives the log-probabilities of the reference file", nil}
	if t.reference != nil {
		reference.check = t.againstReference
	}
	return []promise{
		{"order", "operations are done in the order of their numbers, however they are sent", t.order},
		{"accumulation", "gradients of parts add up to one pass over the whole", t.accumulation},
		{"crowd", "a run has the same results alone and beside others", t.crowd},
		{"agreement", "the sampler's log-probabilities are the trainer's", t.agreement},
		{"plugin killed", "a run goes on when its backend was killed", t.pluginKill},
		{"server killed", "a run goes on when the whole server was killed", t.serverKill},
		{"export", "a checkpoint that is exported as a PEFT adapter and imported is the same adapter", t.roundTrip},
		reference,
	}
}

func (p promise) run(ctx context.Context) Check {
	one := Check{Name: p.name, Promise: p.text, Result: passed}
	if p.check == nil {
		one.Result, one.Detail = skipped, "there is no reference file (tinsmith selftest --write-reference makes one)"
		return one
	}
	begun := time.Now()
	var r tally
	detail, err := p.check(ctx, &r)
	one.Seconds, one.Compared, one.Detail, one.Difference = time.Since(begun).Seconds(), r.compared, detail, r.first
	switch {
	case r.first != nil: // it tells more than what may have followed from it
		one.Result = differs
	case err != nil:
		one.Result, one.Error = failed, err.Error()
	case r.compared == 0:
		one.Result, one.Error = failed, "nothing was compared"
	}
	return one
}

// MakeReference has a server's base model score the texts of the self-test.
func MakeReference(ctx context.Context, o Options) (*Reference, error) {
	c := &client{server: o.Server, model: o.Model, http: newHTTP(), patience: o.Patience}
	defer c.http.CloseIdleConnections()
	t, err := prepare(ctx, c)
	if err != nil {
		return nil, err
	}
	return t.makeReference(ctx)
}

// Err is an error that says how many checks did not pass, and which.
func (r *Report) Err() error {
	var names []error
	for _, c := range r.Checks {
		if c.Result == differs || c.Result == failed {
			names = append(names, fmt.Errorf("%s %s", c.Name, map[string]string{differs: "differs", failed: "could not be checked"}[c.Result]))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("self-test: %d of %d: %w", len(names), len(r.Checks), errors.Join(names...))
}

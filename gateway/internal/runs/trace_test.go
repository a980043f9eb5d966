package runs

import (
	"strings"
	"testing"
)

func TestTrace(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	session := w.session()
	run := w.newRun(session, 0)
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	wrong := w.pass(run, 2)
	wrong.Refusal = "no"
	w.bad(w.ForwardBackward(ctx, wrong))(t, "no")
	sampler, err := w.CreateSampler(ctx, NewSampler{Owner: owner, SessionID: session, Seq: 0, BaseModel: base})
	w.ok(err)
	w.sampled(w.sample(sampler.ID, 0))

	_, _, err = w.TraceToken(ctx, Requester{Owner: other}, session)
	w.refused(err, KindNotFound)
	token, expires, err := w.TraceToken(ctx, Requester{Owner: owner}, session)
	w.ok(err)
	if !expires.After(w.cfg.now()) {
		t.Errorf("expires %s", expires)
	}
	check := func() {
		t.Helper()
		id, events, err := w.Trace(ctx, token)
		w.ok(err)
		var kinds []string
		for _, e := range events {
			kinds = append(kinds, string(e.Kind))
			ran := e.RequestID != run+":2"
			if e.Failed == ran || e.Begun.IsZero() == ran || e.Done.Before(e.Accepted) || ran && (e.Begun.Before(e.Accepted) || e.Done.Before(e.Begun)) {
				t.Errorf("%+v", e)
			}
			if x := e.Ran; (e.Kind == OpForwardBackward && ran) != (x.Cycle > 0) || x.Cycle > 0 && (x.Begin.Before(e.Accepted) || x.End.Before(x.Begin) || e.Done.Before(x.End)) {
				t.Errorf("%+v", e)
			}
		}
		if got := strings.Join(kinds, " "); id != session || got != "create_model forward_backward forward_backward sample" {
			t.Errorf("session %s, %s", id, got)
		}
	}
	check()
	w.restart()
	check()
	_, _, err = w.Trace(ctx, token+"x")
	w.refused(err, KindForbidden)
	w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(w.newRun(session, 1), 1), Name: "s"}))
	archive, _, err := w.ArchiveToken(ctx, Requester{Owner: owner}, "tinker://"+session+":train:1/sampler_weights/s")
	w.ok(err)
	_, _, err = w.Trace(ctx, archive)
	w.refused(err, KindForbidden) // a token is for one purpose
}

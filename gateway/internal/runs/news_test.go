package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
)

// listen opens a listener that ends with the test.
func (w *world) listen(v Viewer, t Topics) *Listener {
	w.t.Helper()
	l, err := w.Listen(w.t.Context(), v, t)
	w.ok(err)
	w.t.Cleanup(l.Close)
	return l
}

// heard takes all that a listener is told until the condition holds.
func (w *world) heard(l *Listener, enough func(News) bool) (all News) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), longest)
	defer cancel()
	for !enough(all) {
		news, err := l.Next(ctx)
		w.ok(err)
		all.Runs = append(all.Runs, news.Runs...)
		all.More, all.Checkpoints, all.Operations = all.More || news.More, all.Checkpoints || news.Checkpoints, all.Operations || news.Operations
		all.Usage, all.Devices = all.Usage || news.Usage, all.Devices || news.Devices
	}
	return all
}

// silent fails if a listener has been told anything.
func (w *world) silent(l *Listener, why string) {
	w.t.Helper()
	w.Core.mu.Lock()
	defer w.Core.mu.Unlock()
	if len(l.woken) > 0 || len(l.runs) > 0 || l.news.More || l.news.Checkpoints || l.news.Operations || l.news.Usage || l.news.Devices {
		w.t.Errorf("%s: told of %v, %+v", why, l.runs, l.news)
	}
}

func TestListenersAreToldOfTheirOwn(t *testing.T) {
	w := newWorld(t, nil)
	session := w.session()
	first := w.newRun(session, 0)
	w.trainSteps(first, 1, 1)
	w.quiet()
	mine := w.listen(Viewer{Owner: owner}, Topics{Runs: true})
	pretends := w.listen(Viewer{Owner: other}, Topics{Runs: true, Everyone: true, Usage: true}) // is no administrator
	admin := w.listen(Viewer{Owner: other, Everyone: true}, Topics{Runs: true, Everyone: true})
	modest := w.listen(Viewer{Owner: other, Everyone: true}, Topics{Runs: true})
	using := w.listen(Viewer{Owner: owner}, Topics{Usage: true})
	watching := w.listen(Viewer{Owner: owner}, Topics{Run: first})
	_, err := w.Listen(t.Context(), Viewer{Owner: other}, Topics{Run: first})
	w.refused(err, KindNotFound)
	w.silent(mine, "before anything happens")

	second := w.newRun(session, 1)
	w.trainSteps(second, 1, 2)
	w.quiet()
	for name, l := range map[string]*Listener{"owner": mine, "administrator": admin} {
		news := w.heard(l, func(n News) bool { return slices.Contains(n.Runs, second) })
		list, gone, err := l.Overviews(t.Context(), news.Runs)
		if err != nil || len(list) != 1 || len(gone) != 0 || list[0].ID != second || !slices.ContainsFunc(list[0].Series, func(s SeriesInfo) bool { return s.Name == history.Loss && s.Step == 2 }) {
			t.Errorf("%s: %v, %v, %+v", name, err, gone, list)
		}
	}
	w.heard(using, func(n News) bool { return n.Usage })
	w.silent(pretends, "what another one does")
	w.silent(modest, "an administrator who asked for his own")
	w.silent(watching, "another run of the owner's")
	w.silent(mine, "taken already")
}

func TestListenersOfOneRun(t *testing.T) {
	w, clock := clocked(t, func(w *world) { w.config.SessionsKept = 24 * time.Hour })
	session := w.session()
	run := w.newRun(session, 0)
	w.trainSteps(run, 1, 40) // some of it is in the store
	w.quiet()
	l := w.listen(Viewer{Owner: owner}, Topics{Run: run})
	tokens := map[int64]float64{}
	take := func() {
		t.Helper()
		points, err := l.Points(t.Context())
		w.ok(err)
		for _, p := range points {
			for _, v := range p.Row.Values {
				if v.Name == history.Tokens {
					tokens[p.Row.Step] = v.Number
				}
			}
		}
	}
	take()
	w.trainSteps(run, 81, 30)
	w.heard(l, func(n News) bool { return n.Operations })
	w.quiet()
	take()
	for step := int64(41); step <= 70; step++ {
		if tokens[step] == 0 {
			t.Fatalf("step %d was not told: %v", step, tokens)
		}
	}
	if len(tokens) > 71 {
		t.Errorf("%d steps were told of 70", len(tokens))
	}
	saved := w.good(w.SaveWeights(t.Context(), SaveWeights{Operation: at(run, 141), Name: "a"})).Saved.Path
	w.heard(l, func(n News) bool { return n.Checkpoints && n.Operations })
	w.ok(w.PublishCheckpoint(t.Context(), owner, saved, true))
	w.heard(l, func(n News) bool { return n.Checkpoints })
	w.ok(w.DeleteCheckpoint(t.Context(), owner, saved, ""))
	w.heard(l, func(n News) bool { return n.Checkpoints })
	_, err := w.AddMetrics(t.Context(), owner, run, []MetricRow{{Step: 9, Values: map[string]float64{"reward": 0.5}}})
	w.ok(err)
	w.heard(l, func(n News) bool { return l.Watches(n.Runs) })
	points, err := l.Points(t.Context())
	if err != nil || len(points) != 1 || !points[0].Client || points[0].Row.Step != 9 {
		t.Errorf("a client's numbers: %v, %+v", err, points)
	}

	devices := w.listen(Viewer{Owner: other}, Topics{Devices: true})
	w.restartBackend()
	w.good(w.ForwardBackward(t.Context(), w.pass(run, 142)))
	w.heard(l, func(n News) bool { return n.Operations })
	w.heard(devices, func(n News) bool { return n.Devices })

	w.ok(w.FinishSession(t.Context(), owner, session, "success", ""))
	w.quiet()
	all := w.heard(l, func(n News) bool { return l.Watches(n.Runs) })
	if list, _, err := l.Overviews(t.Context(), all.Runs[:1]); err != nil || len(list) != 1 || list[0].State != "ended" || list[0].Queued != 0 {
		t.Errorf("after its end: %v, %+v", err, list)
	}
	for range 3 {
		clock.add(48 * time.Hour)
		w.sweep(t.Context(), time.Hour)
	}
	all = w.heard(l, func(n News) bool { return l.Watches(n.Runs) })
	if list, gone, err := l.Overviews(t.Context(), all.Runs[:1]); err != nil || len(list) != 0 || !l.Watches(gone) {
		t.Errorf("after its removal: %v, %v, %+v", err, gone, list)
	}
}

// Nobody's changes wait for a listener that does not look, and it takes no more memory the longer it does not.
func TestListenersThatDoNotLook(t *testing.T) {
	w := newWorld(t, nil)
	l := w.listen(Viewer{Owner: owner}, Topics{Runs: true})
	const changes = 3 * maxListenerRuns
	w.Core.mu.Lock()
	for i := range changes {
		w.changedOf(owner, fmt.Sprint(i), changedRun)
	}
	remembered := len(l.runs)
	w.Core.mu.Unlock()
	if remembered != maxListenerRuns {
		t.Errorf("%d runs are remembered", remembered)
	}
	told := map[string]bool{}
	for len(told) < maxListenerRuns {
		news, err := l.Next(t.Context())
		w.ok(err)
		if len(news.Runs) > maxListenerAnswer || news.More != (len(told) == 0) {
			t.Fatalf("%d runs at a time, more: %v", len(news.Runs), news.More)
		}
		for _, id := range news.Runs {
			told[id] = true
		}
	}
	w.silent(l, "after all was taken")
}

func TestListenersAreBounded(t *testing.T) {
	w := newWorld(t, nil)
	var open []*Listener
	defer func() {
		for _, l := range open {
			l.Close()
		}
	}()
	for i := range maxListeners {
		l, err := w.Listen(t.Context(), Viewer{Owner: fmt.Sprint(i / maxOwnListeners)}, Topics{Runs: true})
		w.ok(err)
		if open = append(open, l); i == maxOwnListeners-1 {
			_, err = w.Listen(t.Context(), Viewer{Owner: "0"}, Topics{Runs: true})
			w.refused(err, KindBusy, "32", "yours")
		}
	}
	_, err := w.Listen(t.Context(), Viewer{Owner: owner}, Topics{Runs: true})
	w.refused(err, KindBusy, "512")
	open[7].Close()
	open[7].Close()
	l, err := w.Listen(t.Context(), Viewer{Owner: owner}, Topics{Runs: true})
	w.ok(err)
	open = append(open, l)
	_, err = w.Listen(t.Context(), Viewer{Owner: "0"}, Topics{Runs: true})
	w.refused(err, KindBusy)
}

func TestListenersEnd(t *testing.T) {
	w := newWorld(t, nil)
	l := w.listen(Viewer{Owner: owner}, Topics{Runs: true})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with its reader: %v", err)
	}
	if err := l.Rest(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("with its reader, resting: %v", err)
	}
	ended := make(chan error, 2)
	go func() {
		_, err := l.Next(t.Context())
		ended <- err
		ended <- l.Rest(t.Context(), time.Hour)
	}()
	w.restart()
	for range 2 {
		if err := <-ended; !errors.Is(err, errClosing) {
			t.Errorf("with the server: %v", err)
		}
	}
}

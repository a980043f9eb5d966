package runs

import (
	"testing"
)

func TestTimeline(t *testing.T) {
	w := newWorld(t, nil)
	run := w.newRun(w.session(), 0)
	w.trainSteps(run, 1, 3)
	for range 2 { // as it is in memory, and as the next process finds it
		spans, err := w.Timeline(t.Context(), Viewer{Owner: owner}, run, 200)
		w.ok(err)
		seq := int64(0)
		for i, s := range spans {
			if s.Cycle < 1 || s.End.Before(s.Begin) || i > 0 && s.Begin.Before(spans[i-1].Begin) {
				t.Errorf("cycle %+v behind %+v", s, spans[max(i-1, 0)])
			}
			for _, o := range s.Operations {
				seq++
				kind, tokens := OpForwardBackward, int64(4)
				if seq%2 == 0 {
					kind, tokens = OpOptimStep, 0
				}
				if o.Seq != seq || o.Kind != kind || o.Tokens != tokens || o.Failed || o.Queued < 0 || o.Begin.Before(s.Begin) || o.End.After(s.End) {
					t.Errorf("operation %d of cycle %d is %+v", seq, s.Cycle, o)
				}
			}
		}
		if seq != 6 {
			t.Fatalf("%d operations: %+v", seq, spans)
		}
		newest, err := w.Timeline(t.Context(), Viewer{Owner: owner}, run, 1)
		w.ok(err)
		if len(newest) != 1 || len(newest[0].Operations) != 1 || newest[0].Operations[0].Seq != 6 {
			t.Errorf("the newest operation: %+v", newest)
		}
		w.restart()
	}
	for _, operations := range []int{0, MaxTimeline + 1} {
		if _, err := w.Timeline(t.Context(), Viewer{Owner: owner}, run, operations); KindOf(err) != KindInvalid {
			t.Errorf("%d operations: %v", operations, err)
		}
	}
	for who, v := range map[string]Viewer{"another": {Owner: "another"}, "nobody's": {}} {
		if _, err := w.Timeline(t.Context(), v, run, 1); KindOf(err) != KindNotFound {
			t.Errorf("%s: %v", who, err)
		}
	}
	if spans, err := w.Timeline(t.Context(), Viewer{Owner: "an administrator", Everyone: true}, run, 1); err != nil || len(spans) != 1 {
		t.Errorf("an administrator: %v, %v", spans, err)
	}
	empty := w.newRun(w.session(), 0)
	if spans, err := w.Timeline(t.Context(), Viewer{Owner: owner}, empty, 1); err != nil || len(spans) != 0 {
		t.Errorf("a run without operations: %v, %v", spans, err)
	}
}

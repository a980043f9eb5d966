package tinker

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

func TestChromeEvents(t *testing.T) {
	zero := time.Unix(1000, 0)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	ran := func(cycle int64, begin, end int) plugins.Execution {
		return plugins.Execution{Cycle: cycle, Begin: at(begin), End: at(end), SamplingTurns: 2, Sampling: 1500 * time.Microsecond}
	}
	events := chromeEvents("s", []runs.TraceEvent{
		{Object: "a", RequestID: "a:1", Kind: runs.OpForwardBackward, Accepted: at(0), Begun: at(1), Done: at(10), Ran: ran(7, 2, 8)},
		{Object: "a", RequestID: "a:2", Kind: runs.OpOptimStep, Accepted: at(1), Begun: at(2), Done: at(12), Ran: ran(7, 9, 11)},
		{Object: "b", RequestID: "b:1", Kind: runs.OpForwardBackward, Accepted: at(1), Begun: at(2), Done: at(12), Ran: ran(8, 12, 20)},
		{Object: "b", RequestID: "b:2", Kind: runs.OpForwardBackward, Accepted: at(3), Begun: at(4), Done: at(5), Failed: true},
		{Object: "b", RequestID: "b:3", Kind: runs.OpForwardBackward, Accepted: at(4)},
		// Another process has counted from 1 again.
		{Object: "a", RequestID: "a:3", Kind: runs.OpForwardBackward, Accepted: at(0), Begun: at(1), Done: at(600_000), Ran: ran(7, 13, 14), Boot: "next"},
	})
	data, err := json.Marshal(events)
	if err != nil {
		t.Fatal(err)
	}
	var read []struct {
		Phase    string `json:"ph"`
		Row      int    `json:"tid"`
		Name     string `json:"name"`
		Category string `json:"cat"`
		Begin    int64  `json:"ts"`
		Duration int64  `json:"dur"`
		Args     struct {
			Operations []string `json:"operations"`
			RequestID  string   `json:"request_id"`
			Cycle      int64    `json:"cycle"`
			Turns      int      `json:"sampling_turns"`
			Sampling   float64  `json:"sampling_ms"`
		} `json:"args"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	var cycles, device int
	open := map[string]int{}
	for _, e := range read {
		switch {
		case e.Phase == "b":
			open[e.Category+e.Name+e.Args.RequestID]++
		case e.Phase == "e":
			open[e.Category+e.Name+e.Args.RequestID]--
		case e.Category == "device":
			device++
			if e.Args.Turns != 2 || e.Args.Sampling != 1.5 || e.Row == 0 {
				t.Errorf("%+v", e)
			}
		case e.Category == "cycle":
			cycles++
			if e.Name == "cycle 7" && e.Begin == at(2).UnixMicro() && (e.Duration != 9000 || len(e.Args.Operations) != 2 || e.Row != 0) {
				t.Errorf("the first cycle: %+v", e)
			}
		}
	}
	if cycles != 3 || device != 4 {
		t.Errorf("%d cycles, %d operations on the device; want 3 and 4", cycles, device)
	}
	for what, n := range open {
		if n != 0 && what != "queuewaiting: forward_backwardb:3" {
			t.Errorf("%d bars of %s have no end", n, what)
		}
	}
}

package cmd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
)

// follower reads a stream of events.
type follower struct {
	caller
	lines *bufio.Scanner
	end   func()
}

// follow opens a stream, which ends with the test.
func (c caller) follow(query string) *follower {
	c.Helper()
	ctx, cancel := context.WithCancel(c.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/api/v1/tinsmith/events?"+query, nil)
	c.ok(err)
	r.Header.Set("Authorization", "Bearer "+c.key)
	answer, err := http.DefaultClient.Do(r)
	c.ok(err)
	f := &follower{c, bufio.NewScanner(answer.Body), func() { cancel(); answer.Body.Close() }}
	f.lines.Buffer(nil, 1<<20)
	c.Cleanup(f.end)
	if answer.StatusCode != http.StatusOK || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") {
		text, _ := io.ReadAll(answer.Body)
		c.Fatalf("%s: %d %s %s", query, answer.StatusCode, answer.Header, text)
	}
	if name, data := f.next(); name != "begin" || data != "{}" {
		c.Fatalf("%s begins with %q %q", query, name, data)
	}
	return f
}

// next gives the next event; "" at the end of the stream.
func (f *follower) next() (name, data string) {
	f.Helper()
	for f.lines.Scan() {
		switch line := f.lines.Text(); {
		case line == "" && name != "":
			return name, data
		case strings.HasPrefix(line, "event: "):
			name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			data = line[len("data: "):]
		}
	}
	return "", ""
}

// until reads events up to one of a name that has a text in it, and fails if any has a text that must not come.
func (f *follower) until(wanted, with, never string) string {
	f.Helper()
	for {
		name, data := f.next()
		if name == "" {
			f.Fatalf("the stream ended before %s with %s", wanted, with)
		}
		if never != "" && strings.Contains(data, never) {
			f.Fatalf("was told %s %s", name, data)
		}
		if name == wanted && strings.Contains(data, with) {
			return data
		}
	}
}

// inStreams counts the goroutines that tell somebody of changes.
func inStreams() int {
	b := make([]byte, 4<<20)
	return bytes.Count(b[:runtime.Stack(b, true)], []byte("tellNews("))
}

func TestEventsTellOfChanges(t *testing.T) {
	w, ann, bob, root := keyed(t)
	theirs := ann.settle()
	before := inStreams()
	list, one := ann.follow("runs=me&usage=true"), ann.follow("run="+theirs.run)
	stranger, all, devices := bob.follow("runs=me&usage=true"), root.follow("runs=all"), bob.follow("devices=true")

	metrics := func(c caller, run string, step int) {
		t.Helper()
		c.demand(http.MethodPost, "/api/v1/tinsmith/runs/"+run+"/metrics", object{"rows": []any{object{"step": step, "values": object{"reward": 0.5}}}})
	}
	metrics(ann, theirs.run, 3)
	for name, f := range map[string]*follower{"list": list, "one": one, "all": all} {
		var told struct {
			Runs []struct {
				ID     string `json:"run_id"`
				Owner  string
				Queued *int
				Series []struct {
					Name string
					Step int
				}
			}
			Gone []string
		}
		w.ok(json.Unmarshal([]byte(f.until("runs", theirs.run, "")), &told))
		if len(told.Runs) != 1 || told.Runs[0].Owner != "ann" || told.Runs[0].Queued == nil || len(told.Gone) != 0 || len(told.Runs[0].Series) != 1 || told.Runs[0].Series[0].Step != 3 {
			t.Errorf("%s: %+v", name, told)
		}
	}
	one.until("points", `"reward":0.5`, "")
	ann.future(ann.demand(http.MethodPost, "/api/v1/save_weights", object{"model_id": theirs.run, "path": "more", "seq_id": 4}))
	one.until("checkpoints", "", "")
	one.until("operations", "", "")
	list.until("usage", "", "")
	w.core.DevicesChanged()
	devices.until("devices", "", theirs.session)

	// The first that bob is told is what he does himself.
	mine := bob.settle()
	stranger.until("runs", mine.run, theirs.session)
	stranger.until("usage", "", theirs.session)
	metrics(bob, mine.run, 4)
	all.until("runs", mine.run, "")

	for _, f := range []*follower{list, one, stranger, all, devices} {
		f.end()
	}
	for end := time.Now().Add(time.Minute); inStreams() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d streams go on without their readers", inStreams()-before)
		}
	}
}

func TestEventsAreRefused(t *testing.T) {
	_, ann, bob, root := keyed(t)
	theirs := ann.settle()
	for _, c := range []struct {
		name, query string
		who         caller
		status      int
		text        string
	}{
		{"nothing is asked for", "", ann, http.StatusBadRequest, "runs (me, all)"},
		{"nothing is switched on", "usage=false", ann, http.StatusBadRequest, "runs (me, all)"},
		{"no such list", "runs=some", ann, http.StatusBadRequest, "runs:"},
		{"no truth", "usage=1", ann, http.StatusBadRequest, "usage:"},
		{"everybody's runs", "runs=all", ann, http.StatusForbidden, "administrators"},
		{"another one's run", "run=" + theirs.run, bob, http.StatusNotFound, "no training run"},
		{"no run", "run=none", root, http.StatusNotFound, "no training run"},
		{"no key", "runs=me", caller{ann.world, ""}, http.StatusUnauthorized, ""},
	} {
		if status, answer := c.who.send(http.MethodGet, "/api/v1/tinsmith/events?"+c.query, nil); status != c.status || !strings.Contains(answer, c.text) {
			t.Errorf("%s: %d %s", c.name, status, answer)
		}
	}
	var open []*follower
	for range 32 {
		open = append(open, ann.follow("runs=me"))
	}
	if status, answer := ann.send(http.MethodGet, "/api/v1/tinsmith/events?runs=me", nil); status != http.StatusTooManyRequests || !strings.Contains(answer, "close some") {
		t.Errorf("one too many: %d %s", status, answer)
	}
	bob.follow("runs=me")
	open[3].end()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) { // until the server has seen that it is gone
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ann.url+"/api/v1/tinsmith/events?runs=me", nil)
		ann.ok(err)
		r.Header.Set("X-Api-Key", ann.key)
		answer, err := http.DefaultClient.Do(r)
		ann.ok(err)
		answer.Body.Close()
		if answer.StatusCode == http.StatusOK {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the place of a stream that has ended is not free")
		}
	}
}

func TestEventsEndWithTheKey(t *testing.T) {
	w, ann, _, _ := keyed(t)
	f := ann.follow("runs=me")
	_, err := keys.Remove(w.keysFile, keys.Selection{Name: "ann"})
	w.ok(err)
	if data := f.until("error", "", ""); !strings.Contains(data, "revoked") {
		t.Errorf("ends with %s", data)
	}
	if name, data := f.next(); name != "" {
		t.Errorf("goes on with %s %s", name, data)
	}
}

func TestEventsEndWithTheServer(t *testing.T) {
	w, ann, _, _ := keyed(t)
	f := ann.follow("runs=me")
	w.ok(w.core.Close(t.Context()))
	f.until("error", "stopping", "")
	if name, data := f.next(); name != "" {
		t.Errorf("goes on with %s %s", name, data)
	}
	if status, answer := ann.send(http.MethodGet, "/api/v1/tinsmith/events?runs=me", nil); status != http.StatusServiceUnavailable {
		t.Errorf("after the end: %d %s", status, answer)
	}
}

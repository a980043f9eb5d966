package cmd

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// usageOf reads what a caller is told.
func usageOf(c caller, query string) (usageAnswer, string) {
	c.Helper()
	text := c.demand(http.MethodGet, "/api/v1/tinsmith/usage"+query, nil)
	var answer usageAnswer
	c.ok(json.Unmarshal([]byte(text), &answer))
	return answer, text
}

// Each sees the own use and keys, an administrator everybody's.
func TestUsageEndpoint(t *testing.T) {
	_, ann, bob, root := keyed(t)
	ann.settle()
	own, text := usageOf(ann, "?days=1")
	if len(own.Days) != 1 || own.Days[0].Key != "ann" || own.Days[0].Model != served || own.Days[0].Date != time.Now().UTC().Format(time.DateOnly) {
		t.Fatalf("ann: %s", text)
	}
	if d := own.Days[0]; d.Sampled != 3 || d.Prompt < 3 || d.Requests != 7 || d.Checkpoints != 3 || d.Trained != 0 || d.Steps != 0 {
		t.Errorf("ann has used %+v", d)
	}
	if len(own.Now) != 1 || own.Now[0].Runs != 1 || own.Now[0].Bytes == 0 || own.Now[0].Limits.Runs != nil || own.Now[0].Weight != 1 {
		t.Errorf("ann has %+v", own.Now)
	}
	if none, text := usageOf(bob, ""); len(none.Days) != 0 || len(none.Now) != 1 || strings.Contains(text, "ann") {
		t.Errorf("bob: %s", text)
	}
	all, text := usageOf(root, "")
	if len(all.Days) != 1 || all.Days[0].Key != "ann" || len(all.Now) != 3 {
		t.Errorf("an administrator: %s", text)
	}
	for _, days := range []string{"0", "367", "x", "-1"} {
		if status, answer := ann.send(http.MethodGet, "/api/v1/tinsmith/usage?days="+days, nil); status != http.StatusBadRequest || !strings.Contains(answer, "days") {
			t.Errorf("days=%s: %d %s", days, status, answer)
		}
	}
	var out bytes.Buffer
	writeUsage(&out, all)
	for _, word := range []string{"ann", "SAMPLED", served, "root"} {
		if !strings.Contains(out.String(), word) {
			t.Errorf("the table has no %s:\n%s", word, &out)
		}
	}
}

// What is over a limit gets a 429 that says when to come again, on every surface; an expired key a 401 that says so.
func TestLimitsAreTold(t *testing.T) {
	w, ann, bob, _ := keyed(t)
	w.core.SetLimits(limitTable(config.Limits{Keys: map[string]config.Limit{"ann": {Runs: new(int), SampledTokens: one()}}}))
	ask := func(c caller, path string, body object) *http.Response {
		t.Helper()
		content, err := json.Marshal(body)
		w.ok(err)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+path, bytes.NewReader(content))
		w.ok(err)
		r.Header.Set("X-Api-Key", c.key)
		answer, err := http.DefaultClient.Do(r)
		w.ok(err)
		t.Cleanup(func() { answer.Body.Close() })
		return answer
	}
	chat := object{"model": served, "messages": []any{object{"role": "user", "content": "hi"}}, "max_tokens": 4}
	message := object{"model": served, "messages": []any{object{"role": "user", "content": "hi"}}, "max_tokens": 4}
	if first := ask(ann, "/v1/chat/completions", chat); first.StatusCode != http.StatusOK {
		t.Fatalf("the first: %s", first.Status)
	}
	for path, body := range map[string]object{"/v1/chat/completions": chat, "/v1/messages": message, "/v1/responses": {"model": served, "input": "hi"}} {
		answer := ask(ann, path, body)
		var text bytes.Buffer
		_, err := text.ReadFrom(answer.Body)
		w.ok(err)
		after := answer.Header.Get("Retry-After")
		if answer.StatusCode != http.StatusTooManyRequests || after == "" || after == "0" || !strings.Contains(text.String(), "key ann: ") || !strings.Contains(text.String(), "sampled_tokens_per_minute") {
			t.Errorf("%s: %s, Retry-After %q, %s", path, answer.Status, after, &text)
		}
		if other := ask(bob, path, body); other.StatusCode != http.StatusOK {
			t.Errorf("%s, another key: %s", path, other.Status)
		}
	}
	w.core.SetLimits(limitTable(config.Limits{Default: config.Limit{Runs: one()}}))
	ann.settle()
	session := ann.field(ann.demand(http.MethodPost, "/api/v1/create_session", object{}), "session_id")
	answer := ask(ann, "/api/v1/create_model", object{"session_id": session, "model_seq_id": 0, "base_model": served, "lora_config": object{"rank": 4}})
	if answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") != "10" {
		t.Errorf("a second run: %s, Retry-After %q", answer.Status, answer.Header.Get("Retry-After"))
	}
	over, err := keys.AddWith(w.keysFile, "eve", false, time.Now().Add(-time.Second))
	w.ok(err)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		status, text := caller{w, over}.send(http.MethodGet, "/api/v1/sessions", nil)
		if status != http.StatusUnauthorized {
			t.Fatalf("an expired key: %d %s", status, text)
		}
		if strings.Contains(text, "has expired") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("an expired key is not told that it is: %s", text)
		}
	}
}

func one() *int {
	n := 1
	return &n
}

// A reload changes limits, and nothing else that is not to be changed.
func TestReloadChangesLimits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	write := func(limits string) {
		if err := os.WriteFile(file, []byte(limits+"\nmodels: [{name: a, path: x}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("limits: {default: {runs: 1}}")
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.DataDir, err = filepath.Abs(cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	taken := limitsTaken{configured: configured{make(chan string, 2)}}
	write("limits: {default: {runs: 2}, keys: {ann: {runs: 0, checkpoint_mib: 3, metric_values: 7}}}")
	if cfg, err = reload(t.Context(), cfg, &taken); err != nil {
		t.Fatal(err)
	}
	if got := limitTable(taken.last); got.Default.Runs != 2 || got.Named["ann"] != (runs.Limits{CheckpointBytes: 3 << 20, MetricValues: 7}) {
		t.Errorf("%+v", got)
	}
	write("limits: {default: {runs: -2}}")
	if cfg, err = reload(t.Context(), cfg, &taken); err == nil || *taken.last.Default.Runs != 2 {
		t.Errorf("a wrong limit: %v, %+v", err, taken.last)
	}
	write("limits: {default: {runs: 3}}\nscheduling: {weights: {ann: 2}}")
	if _, err = reload(t.Context(), cfg, &taken); err == nil || !strings.Contains(err.Error(), "need a restart") || *taken.last.Default.Runs != 3 {
		t.Errorf("limits and something else: %v, %+v", err, taken.last)
	}
}

// limitsTaken takes note of limits.
type limitsTaken struct {
	configured
	last config.Limits
}

func (l *limitsTaken) limit(limits config.Limits) { l.last = limits }

func TestKeyCommands(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	run := func(args ...string) (string, error) {
		c := keyCommand()
		var out bytes.Buffer
		c.SetOut(&out)
		c.SetErr(&out)
		c.SilenceUsage, c.SilenceErrors = true, true
		c.SetArgs(append(args, "--file", file))
		err := c.Execute()
		return out.String(), err
	}
	for _, args := range [][]string{{"create", "ann", "--expires", "90d"}, {"add", "ann"}, {"add", "root", "--admin"}} {
		if out, err := run(args...); err != nil || !strings.HasPrefix(out, keys.Prefix) {
			t.Fatalf("%v: %s %v", args, out, err)
		}
	}
	for _, bad := range []string{"tomorrow", "2001-01-01", "-5h", "0d", "99999999999d", "1e9h"} {
		if out, err := run("add", "zoe", "--expires", bad); err == nil || !strings.Contains(err.Error(), "--expires") {
			t.Errorf("--expires %s: %s %v", bad, out, err)
		}
	}
	out, err := run("list")
	if err != nil || strings.Count(out, "\n") != 4 || strings.Count(out, "never") != 2 || strings.Contains(out, "zoe") {
		t.Errorf("list: %v\n%s", err, out)
	}
	out, err = run("list", "--json")
	var listed struct {
		Keys []struct {
			Name, ID string
			Admin    bool
			Expires  *time.Time
		}
	}
	if err != nil || json.Unmarshal([]byte(out), &listed) != nil || len(listed.Keys) != 3 || listed.Keys[0].Expires == nil || listed.Keys[1].Expires != nil || !listed.Keys[2].Admin {
		t.Fatalf("list --json: %v\n%s", err, out)
	}
	if _, err := run("remove", "ann"); err == nil || !strings.Contains(err.Error(), "--id") {
		t.Errorf("remove of several: %v", err)
	}
	if out, err := run("remove", "ann", "--id", listed.Keys[1].ID); err != nil || !strings.Contains(out, listed.Keys[1].ID) {
		t.Errorf("remove: %s %v", out, err)
	}
	if out, err := run("rotate", "root", "--keep", "0"); err != nil || !strings.Contains(out, "is removed") || !strings.HasPrefix(out, keys.Prefix) {
		t.Errorf("rotate: %s %v", out, err)
	}
	if out, err := run("rotate", "ann", "--keep", "5m"); err != nil || !strings.Contains(out, "works until") {
		t.Errorf("rotate: %s %v", out, err)
	}
	if _, err := run("rotate", "ann", "--keep", "long", "--id", listed.Keys[0].ID); err == nil || !strings.Contains(err.Error(), "--keep") {
		t.Errorf("rotate: %v", err)
	}
}

package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// planning is a backend that plans one model.
type planning struct{ Backend }

func (planning) PlanMemory(_ context.Context, req PlanRequest) (Plan, error) {
	if req.ModelDir != "/model" {
		return Plan{}, Invalidf("model_dir", "is %q", req.ModelDir)
	}
	return Plan{Model: PlannedModel{Parameters: req.Memory}}, nil
}

func TestServePlan(t *testing.T) {
	for _, c := range []struct {
		name, question string
		want           func(planAnswer) bool
		err            string
	}{
		{"plan", `{"version": 1, "model_dir": "/model", "memory_bytes": 5}`, func(a planAnswer) bool { return a.Plan != nil && a.Plan.Model.Parameters == 5 && a.Message == "" }, ""},
		{"no model", `{"version": 1, "model_dir": "/other"}`, func(a planAnswer) bool {
			return a.Plan == nil && a.Kind == "invalid" && a.Field == "model_dir" && a.Message == `is "/other"`
		}, ""},
		{"another version", `{"version": 2, "model_dir": "/model"}`, nil, "version 2"},
		{"no version", `{"model_dir": "/model"}`, nil, "version 0"},
		{"no JSON", `{`, nil, "read the question"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			err := servePlan(t.Context(), planning{}, strings.NewReader(c.question), &out)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || out.Len() > 0 {
					t.Errorf("%v, %q", err, out.String())
				}
				return
			}
			var a planAnswer
			if err != nil || json.Unmarshal([]byte(out.String()), &a) != nil || a.Version != 1 || !c.want(a) {
				t.Errorf("%v, %s", err, out.String())
			}
		})
	}
	var out strings.Builder
	if err := servePlan(t.Context(), struct{ Backend }{}, strings.NewReader("{}"), &out); !errors.Is(err, ErrUnplanned) || out.Len() > 0 {
		t.Errorf("a backend that cannot tell: %v, %q", err, out.String())
	}
}

// TestPlanMemory: programs of every kind, also such as know nothing of plans.
func TestPlanMemory(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         error
		message      string
	}{
		{"plan", `[ "$1" = plan-memory ] && grep -q '"version":1.*"model_dir":"/model".*"config":null' && echo '{"version": 1, "plan": {"model": {"parameters": 7}}}'`, nil, ""},
		{"no model", `echo '{"version": 1, "kind": "invalid", "field": "model_dir", "message": "is wrong"}'`, ErrInvalid, "model_dir: is wrong"},
		{"a kind that nobody knows", `echo '{"version": 1, "kind": "strange", "message": "is wrong"}'`, &Error{Kind: KindInternal, Message: "internal"}, "is wrong"},
		{"of an earlier version", `echo "this program is a backend plugin" >&2; exit 1`, ErrUnplanned, ""},
		{"of a later version", `echo '{"version": 2, "plan": {}}'`, ErrUnplanned, ""},
		{"that says something else", `echo hello`, ErrUnplanned, ""},
		{"that says nothing", `true`, ErrUnplanned, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "plugin")
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			p, err := PlanMemory(t.Context(), path, os.Environ(), PlanRequest{ModelDir: "/model"})
			if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.message) || err == nil && p.Model.Parameters != 7 {
				t.Errorf("%+v, %v, want %v", p, err, c.want)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nyes\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := PlanMemory(t.Context(), path, os.Environ(), PlanRequest{ModelDir: "/model"}); !errors.Is(err, errLongAnswer) {
		t.Errorf("an answer without an end: %v", err)
	}
}

package cmd

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWithoutNaN(t *testing.T) {
	for in, want := range map[string]string{
		`{"a": NaN, "b": -Infinity, "c": Infinity, "d": -1}`: `{"a": null, "b": null, "c": null, "d": -1}`,
		`{"NaN": 1, "x\"NaN": "Infinity", "y": NaN}`:         `{"NaN": 1, "x\"NaN": "Infinity", "y": null}`,
		`{"a": "NaN`:   `{"a": "NaN`,
		`{"a": "NaN\`:  `{"a": "NaN\`,
		`{"a": 1}`:     `{"a": 1}`,
		`NaN`:          `null`,
		`"NaN" NaN -5`: `"NaN" null -5`,
	} {
		if got := string(withoutNaN([]byte(in))); got != want {
			t.Errorf("%s is %s, wanted %s", in, got, want)
		}
	}
}

func FuzzWithoutNaN(f *testing.F) {
	f.Add(`{"a": NaN}`)
	f.Add(`"\`)
	f.Fuzz(func(t *testing.T, in string) {
		var v any
		if out := withoutNaN([]byte(in)); json.Unmarshal([]byte(in), &v) == nil && string(out) != in {
			t.Errorf("%q, which is JSON, is %q", in, out)
		}
	})
}

// metricsServer keeps the rows that it is sent.
func metricsServer(t *testing.T, statuses ...int) (*connection, func() string) {
	var got strings.Builder
	changed := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if len(statuses) > 0 {
			status := statuses[0]
			statuses = statuses[1:]
			w.WriteHeader(status)
			return
		}
		got.Write(b)
		io.WriteString(w, `{"values_passed_over": 0}`)
		changed <- struct{}{}
	}))
	t.Cleanup(server.Close)
	return &connection{url: server.URL}, func() string {
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatal("nothing was sent")
		}
		return got.String()
	}
}

func TestMetricsFileIsSent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	lines := []string{
		`{"step": 0, "optim/lr": 0.001, "env/all/reward/total": NaN, "name": "text", "done": true}`,
		`no JSON`, ``,
		`{"step": 1.5, "a": 1}`,
		`{"step": 3, "a": 1, "` + strings.Repeat("x", 1000) + `": 1, "b\u001b[31m": 1}`,
		`{"a": 2}`, // a summary
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	conn, sent := metricsServer(t)
	var told strings.Builder
	m := metricsFile{conn: conn, run: "s:train:0", path: path, told: &told}
	n, err := m.send(t.Context(), false)
	if err != nil || n != 3 {
		t.Fatalf("%d rows, %v", n, err)
	}
	if got, want := sent(), `{"rows":[{"step":0,"values":{"env/all/reward/total":null,"optim/lr":0.001}},{"step":3,"values":{"a":1}},{"step":3,"values":{"a":2}}]}`; got != want {
		t.Errorf("sent %s, wanted %s", got, want)
	}
	for _, word := range []string{`"name" is no number`, `"done" is no number`, "1000 bytes", `b\x1b[31m`, "step \"1.5\"", "a line is left out"} {
		if !strings.Contains(told.String(), word) {
			t.Errorf("the user is not told of %s:\n%s", word, told.String())
		}
	}
	if strings.Contains(told.String(), "\x1b") {
		t.Errorf("the user's terminal is told %q", told.String())
	}
}

func TestMetricsFileIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	conn, sent := metricsServer(t, http.StatusServiceUnavailable)
	m := metricsFile{conn: conn, run: "s:train:0", path: path, told: io.Discard}
	go m.send(t.Context(), true)
	f, err := os.Create(path) // after it is looked for, as a rule
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	io.WriteString(f, "{\"step\": 0, \"a\": 1}\n{\"step\": 1, ")
	if got := sent(); got != `{"rows":[{"step":0,"values":{"a":1}}]}` {
		t.Errorf("sent %s", got)
	}
	io.WriteString(f, "\"a\": 2}\n")
	if got := sent(); !strings.HasSuffix(got, `{"rows":[{"step":1,"values":{"a":2}}]}`) {
		t.Errorf("sent %s", got)
	}
}

func TestMetricsThatARunDoesNotTakeAreAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	if err := os.WriteFile(path, []byte("{\"a\": 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	conn, _ := metricsServer(t, http.StatusNotFound)
	m := metricsFile{conn: conn, run: "s:train:0", path: path, told: io.Discard}
	if _, err := m.send(t.Context(), true); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a run that is not there: %v", err)
	}
}

func TestCurves(t *testing.T) {
	number := func(values ...float64) (list []*float64) {
		for i := range values {
			list = append(list, &values[i])
		}
		return list
	}
	for name, c := range map[string]struct {
		steps  []int64
		values []*float64
		want   []string
	}{
		"none":          {nil, nil, []string{"no numbers"}},
		"none finite":   {[]int64{1, 2}, append(number(math.Inf(1)), nil), []string{"no numbers"}},
		"one":           {[]int64{7}, number(3), []string{"3 ┤", "7"}},
		"equal":         {[]int64{1, 2}, number(5, 5), []string{"5 ┤", "⣀⣀⣀"}},
		"falling":       {[]int64{0, 10}, number(2, -2), []string{"2 ┤⠉⠉⠉⠒", "-2 ┤", "⠤⠤⢄\n"}},
		"the largest":   {[]int64{0, 1 << 53}, number(-math.MaxFloat64, math.MaxFloat64), []string{"1.7977e+308 ┤", "9007199254740992"}},
		"with a gap":    {[]int64{0, 5, 10}, []*float64{number(1)[0], nil, number(2)[0]}, []string{"2 ┤"}},
		"fewer numbers": {[]int64{0}, number(1, 2, 3), []string{"1 ┤"}},
	} {
		var out strings.Builder
		drawCurve(&out, c.steps, c.values)
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %s\nhas no %s", name, out.String(), want)
			}
		}
		for line := range strings.Lines(out.String()) {
			if n := len([]rune(line)); n > lineWidth {
				t.Errorf("%s: a line has %d characters", name, n)
			}
		}
	}
}

func TestNamesAreShownAsText(t *testing.T) {
	for in, want := range map[naming]string{
		{"first", "math_rl"}: "first, math_rl",
		{"", "math_rl"}:      "math_rl",
		{}:                   "",
		{"<b>a</b>\x1b[31m\u202eb\u2066\r\nc", ""}:  "<b>a</b>[31mb c",
		{strings.Repeat("é", 1<<20), "never shown"}: strings.Repeat("é", lineWidth-3) + "…",
	} {
		if got := in.text(); got != want {
			t.Errorf("%.40q is shown as %q, wanted %q", in, got, want)
		}
	}
}

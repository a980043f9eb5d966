package schema

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// corpus gives the folder of test data that is not in the repository, or skips.
func corpus(t testing.TB, name string) string {
	t.Helper()
	root := os.Getenv("TINSMITH_TESTDATA")
	if root == "" {
		t.Skip("TINSMITH_TESTDATA is not set: its licence keeps " + name + " out of the repository")
	}
	return filepath.Join(root, "surfaces", name)
}

// writings are the texts of a value: compact, with spaces, indented.
func writings(t *testing.T, d *document, data []byte) []string {
	t.Helper()
	v, err := jsonvalue.Read(data, jsonvalue.Limits{Bytes: 1 << 24, Depth: 10_000})
	if err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	if os.Getenv("RAW") == "" {
		v = inOrder(d, v)
	}
	return []string{write(v, ",", ":", "", ""), write(v, ", ", ": ", "", ""), write(v, ",", ": ", "  ", "\n")}
}

func write(v *jsonvalue.Value, comma, colon, indent, line string) string {
	var b strings.Builder
	var down func(v *jsonvalue.Value, depth int)
	newline := func(depth int) {
		b.WriteString(line)
		b.WriteString(strings.Repeat(indent, depth))
	}
	down = func(v *jsonvalue.Value, depth int) {
		switch v.Kind {
		case jsonvalue.String:
			jsonvalue.Quote(&b, v.Text)
		case jsonvalue.Number:
			d := jsonvalue.ParseDecimal(v.Text)
			if strings.ContainsAny(v.Text, "eE") {
				b.WriteString(v.Text)
			} else {
				b.WriteString(d.String())
			}
		case jsonvalue.Array:
			b.WriteByte('[')
			for i, item := range v.Items {
				if i > 0 {
					b.WriteString(comma)
				}
				newline(depth + 1)
				down(item, depth+1)
			}
			if len(v.Items) > 0 {
				newline(depth)
			}
			b.WriteByte(']')
		case jsonvalue.Object:
			b.WriteByte('{')
			for i, m := range v.Members {
				if i > 0 {
					b.WriteString(comma)
				}
				newline(depth + 1)
				jsonvalue.Quote(&b, m.Key)
				b.WriteString(colon)
				down(m.Value, depth+1)
			}
			if len(v.Members) > 0 {
				newline(depth)
			}
			b.WriteByte('}')
		default:
			b.WriteString(jsonvalue.Canonical(v))
		}
	}
	down(v, 0)
	return b.String()
}

type instance struct {
	Valid       bool            `json:"valid"`
	Data        json.RawMessage `json:"data"`
	Description string          `json:"description"`
}

func lines(t *testing.T, path string, each func(line []byte)) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	scanner := bufio.NewScanner(bytes.NewReader(text))
	scanner.Buffer(nil, 1<<26)
	for scanner.Scan() {
		if len(scanner.Bytes()) > 0 {
			each(scanner.Bytes())
		}
	}
}

// inOrder is the value with its keys in the order in which the schemas list them, as a grammar wants them.
func inOrder(d *document, v *jsonvalue.Value) *jsonvalue.Value {
	check := newValidator(d, 50_000_000)
	var down func(list []*node, v *jsonvalue.Value) *jsonvalue.Value
	down = func(list []*node, v *jsonvalue.Value) *jsonvalue.Value {
		var all []*node
		have := map[*node]bool{}
		var collect func(n *node)
		collect = func(n *node) {
			if n == nil || have[n] {
				return
			}
			have[n] = true
			if n.value == nil || n.boolean {
				return
			}
			for _, part := range n.textOrder() {
				switch part {
				case "properties":
					all = append(all, n)
				case "$ref":
					for _, sub := range n.references {
						collect(sub)
					}
				case "allOf":
					for _, sub := range n.allOf {
						collect(sub)
					}
				case "anyOf", "oneOf":
					for _, sub := range map[string][]*node{"anyOf": n.anyOf, "oneOf": n.oneOf}[part] {
						if yes, _ := check.satisfies(sub, v); yes {
							collect(sub)
						}
					}
				}
			}
			if n.when != nil {
				if yes, _ := check.satisfies(n.when, v); yes {
					collect(n.when)
					collect(n.whenTrue)
				} else {
					collect(n.whenNot)
				}
			}
			for _, dep := range n.dependencies {
				if v.Get(dep.key) != nil {
					collect(dep.schema)
				}
			}
		}
		for _, n := range list {
			collect(n)
		}
		out := *v
		switch v.Kind {
		case jsonvalue.Array:
			out.Items = nil
			for i, item := range v.Items {
				var subs []*node
				for _, n := range all {
					if i < len(n.prefix) {
						subs = append(subs, n.prefix[i])
					} else {
						subs = append(subs, n.items, n.unevaluatedItems)
					}
					if n.contains != nil {
						if yes, _ := check.satisfies(n.contains, item); yes {
							subs = append(subs, n.contains)
						}
					}
				}
				out.Items = append(out.Items, down(subs, item))
			}
		case jsonvalue.Object:
			rank := map[string]int{}
			add := func(name string) {
				if _, ok := rank[name]; !ok {
					rank[name] = len(rank) + 1
				}
			}
			for _, n := range all {
				for _, p := range n.properties {
					add(p.name)
				}
			}
			for _, n := range all {
				for _, name := range n.required {
					add(name)
				}
				for _, dep := range n.dependencies {
					if len(dep.required) > 0 || dep.schema != nil {
						add(dep.key)
					}
					for _, name := range dep.required {
						add(name)
					}
				}
			}
			place := func(m jsonvalue.Member) int {
				if r, ok := rank[m.Key]; ok {
					return r
				}
				return len(rank) + 1
			}
			out.Members = slices.Clone(v.Members)
			slices.SortStableFunc(out.Members, func(a, b jsonvalue.Member) int { return place(a) - place(b) })
			for i, m := range out.Members {
				var subs []*node
				for _, n := range all {
					known := false
					for _, p := range n.properties {
						if p.name == m.Key {
							subs, known = append(subs, p.schema), true
						}
					}
					for _, p := range n.patterns {
						if yes, _ := p.pattern.Match(m.Key, 1<<20); yes {
							subs, known = append(subs, p.schema), true
						}
					}
					if !known {
						subs = append(subs, n.additional, n.unevaluatedProperties)
					}
				}
				out.Members[i].Value = down(subs, m.Value)
			}
		}
		return &out
	}
	return down([]*node{d.root}, v)
}

// tally counts what is refused by reason.
type tally map[string]int

func (c tally) print(t *testing.T) {
	t.Helper()
	keys := slices.SortedFunc(maps.Keys(c), func(a, b string) int { return c[b] - c[a] })
	for _, k := range keys[:min(60, len(keys))] {
		t.Logf("%5d %s", c[k], k)
	}
}

func TestRealSchemas(t *testing.T) {
	files, err := filepath.Glob(corpus(t, "maskbench") + "/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatal("no schemas", err)
	}
	only := os.Getenv("ONLY")
	schemas, loose, strict, rejected, accepted, unvalidated := 0, 0, 0, 0, 0, 0
	refused, relaxed := tally{}, tally{}
	var times []time.Duration
	for _, file := range files {
		lines(t, file, func(line []byte) {
			var c struct {
				ID     string          `json:"id"`
				Schema json.RawMessage `json:"schema"`
				Tests  []instance      `json:"tests"`
			}
			if err := json.Unmarshal(line, &c); err != nil {
				t.Fatal(err)
			}
			if only != "" && !strings.Contains(c.ID, only) {
				return
			}
			schemas++
			start := time.Now()
			compiled, err := Compile(context.Background(), c.Schema, Options{})
			took := time.Since(start)
			times = append(times, took)
			if took > 100*time.Millisecond {
				t.Logf("%s took %v", c.ID, took)
			}
			if err != nil {
				refused[reason(err)]++
				if os.Getenv("REFUSED") != "" {
					t.Log(c.ID, err)
				}
				return
			}
			loose++
			if len(compiled.Relaxed) == 0 {
				strict++
			} else {
				relaxed[compiled.Relaxed[0].Keyword+": "+compiled.Relaxed[0].Reason]++
				if os.Getenv("RELAXED") != "" {
					t.Log(c.ID, compiled.Relaxed)
				}
			}
			for i, test := range c.Tests {
				if problems := compiled.Validate(test.Data); (len(problems) == 0) != test.Valid {
					unvalidated++
					t.Logf("%s #%d validator: valid %v: %v %.300s", c.ID, i, test.Valid, problems, test.Data)
				}
				for _, text := range writings(t, compiled.document, test.Data) {
					ok, err := grammar.Matches(compiled.Grammar, text)
					if err != nil {
						t.Errorf("%s #%d: %v", c.ID, i, err)
						continue
					}
					switch {
					case test.Valid && !ok:
						rejected++
						t.Logf("%s #%d rejected: %.400s", c.ID, i, text)
					case !test.Valid && ok && len(compiled.Relaxed) == 0:
						accepted++
						t.Logf("%s #%d accepted: %.400s", c.ID, i, text)
					default:
						continue
					}
					break
				}
			}
		})
	}
	slices.Sort(times)
	t.Logf("%d schemas, %d taken (%.1f %%), %d strict (%.1f %%), %d valid rejected, %d invalid accepted, %d judged otherwise", schemas, loose,
		100*float64(loose)/float64(schemas), strict, 100*float64(strict)/float64(schemas), rejected, accepted, unvalidated)
	t.Logf("compile p50 %v p95 %v p99 %v max %v", times[len(times)/2], times[len(times)*95/100], times[len(times)*99/100], times[len(times)-1])
	refused.print(t)
	relaxed.print(t)
}

func reason(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Keyword + ": " + fmt.Sprintf("%.60s", e.Reason)
	}
	return err.Error()
}

package schema

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// claim is what we say about a text, for an independent validator to check.
type claim struct {
	Text  string `json:"text"`
	Valid bool   `json:"valid"`
	How   string `json:"how"`
}

// claims are about one schema.
type claims struct {
	Schema json.RawMessage `json:"schema"`
	Claims []claim         `json:"claims"`
}

// TestIndependent follows masks at random and asks Python's jsonschema about the texts: what is finished under strict must be valid; what is finished
// without it must be valid where our validator says so and invalid where it does not; and of values that come from elsewhere, those that are valid must be
// possible under strict and the others not. TINSMITH_PYTHON names a Python that has jsonschema and regex; TINSMITH_WALKS is how many random schemas there
// are, TINSMITH_SEED where they begin, TINSMITH_TESTDATA adds the real ones.
func TestIndependent(t *testing.T) {
	python := os.Getenv("TINSMITH_PYTHON")
	if python == "" {
		t.Skip("TINSMITH_PYTHON is not set: it names a Python with jsonschema and regex")
	}
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return otherwise
	}
	seed := number("TINSMITH_SEED", 1)
	w := &claimWriter{t: t, r: rand.New(rand.NewPCG(uint64(seed), 3)), index: letters(t)}
	command := exec.Command(python, "testdata/independent.py")
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	w.out = json.NewEncoder(input)
	generator := randomSchema{Rand: w.r}
	for range number("TINSMITH_WALKS", 200) {
		w.schema([]byte(generator.document()), generator)
	}
	if os.Getenv("TINSMITH_TESTDATA") != "" {
		for range number("TINSMITH_REAL", 1) {
			w.real(corpus(t, "maskbench"), generator)
		}
	}
	_ = input.Close()
	if err := command.Wait(); err != nil {
		t.Errorf("%s: %v", python, err)
	}
	t.Logf("%d schemas, %d strict, %d refused; %d texts finished, %d not; %d values; %d masks too large, %d texts with a key twice", w.schemas, w.strict, w.refused,
		w.finished, w.open, w.values, w.large, w.repeated)
	faults := bufio.NewScanner(&output)
	faults.Buffer(nil, 1<<26)
	for faults.Scan() {
		t.Error(faults.Text())
	}
	if w.finished == 0 {
		t.Error("no text was finished")
	}
}

type claimWriter struct {
	t     *testing.T
	r     *rand.Rand
	index *grammar.TokenIndex
	out   *json.Encoder

	schemas, strict, refused, finished, open, values, large, repeated int
}

// schema makes the claims about one schema.
func (w *claimWriter) schema(schema []byte, generator randomSchema, instances ...json.RawMessage) {
	t := w.t
	w.schemas++
	all := claims{Schema: schema}
	strict, err := Compile(context.Background(), schema, Options{Strict: true})
	var e *Error
	if err != nil && !errors.As(err, &e) {
		t.Errorf("%s: %v", schema, err)
	}
	relaxed, relaxedErr := strict, error(nil)
	if err != nil {
		relaxed, relaxedErr = Compile(context.Background(), schema, Options{})
	}
	if relaxedErr != nil {
		if err == nil || e.Relaxed && !strings.Contains(relaxedErr.Error(), "no value satisfies it") {
			t.Errorf("strict: %v, relaxed: %v: %s", err, relaxedErr, schema)
		}
		w.refused++
		if strings.Contains(relaxedErr.Error(), "no value satisfies it") {
			for range 20 {
				text := generator.value(2)
				all.Claims = append(all.Claims, claim{text, false, "said to have no value"})
			}
			_ = w.out.Encode(all)
		}
		return
	}
	if err == nil {
		w.strict++
	}
	w.walks(relaxed, err == nil, &all)
	for range 20 {
		instances = append(instances, json.RawMessage(generator.value(2)))
	}
	for _, c := range all.Claims {
		instances = append(instances, w.change(c.Text, generator))
	}
	masks, compileErr := grammar.Compile(context.Background(), relaxed.Grammar, nil, grammar.DefaultLimits())
	if compileErr != nil {
		t.Errorf("%.300s: %v", schema, compileErr)
		return
	}
	for _, instance := range instances {
		v, readErr := jsonvalue.Read(instance, jsonvalue.Limits{Bytes: 1 << 24, Depth: 10_000})
		if readErr != nil || exponent.Match(instance) {
			continue // beside bounds and divisors numbers are written without exponent
		}
		w.values++
		valid := len(relaxed.Validate(instance)) == 0
		text := write(inOrder(relaxed.document, v), ",", ":", "", "")
		all.Claims = append(all.Claims, claim{text, valid, "validated"})
		possible, matchErr := masks.MatchesText(text)
		if !possible { // a listed value is written in its own order
			possible, matchErr = masks.MatchesText(write(v, ",", ":", "", ""))
		}
		switch {
		case matchErr != nil:
			w.large++
		case valid && !possible:
			t.Errorf("not possible: %s under %.1000s", text, schema)
		case err == nil && possible && !valid:
			t.Errorf("possible under strict: %s under %.1000s", text, schema)
		}
	}
	if err := w.out.Encode(all); err != nil {
		t.Fatal(err)
	}
}

// walks writes texts of several lengths.
func (w *claimWriter) walks(compiled *Compiled, strict bool, all *claims) {
	masks, err := grammar.Compile(context.Background(), compiled.Grammar, w.index, grammar.DefaultLimits())
	if err != nil {
		w.t.Errorf("%.300s: %v", all.Schema, err)
		return
	}
	for range 3 {
		text, ok := randomText(w.t, masks, w.r, w.index.Words())
		if !ok {
			w.open++
			continue
		}
		w.finished++
		problems := compiled.Validate([]byte(text))
		if repeatsKeys(text) {
			w.repeated++
		}
		if strict && len(problems) > 0 {
			w.t.Errorf("strict, our validator: %q %v under %.1000s", text, problems, all.Schema)
		}
		how := "finished, validated"
		if strict {
			how = "finished under strict"
		}
		all.Claims = append(all.Claims, claim{text, strict || len(problems) == 0, how})
	}
}

var exponent = regexp.MustCompile(`[0-9][eE][-+0-9]`)

// repeatsKeys tells whether an object of a text has a key twice.
func repeatsKeys(text string) bool {
	_, err := jsonvalue.Read([]byte(text), jsonvalue.Limits{Bytes: 1 << 24, Depth: 10_000})
	return err != nil
}

// change takes something out of a value or puts something else in.
func (w *claimWriter) change(text string, generator randomSchema) json.RawMessage {
	v, err := jsonvalue.Read([]byte(text), jsonvalue.Limits{Bytes: 1 << 24, Depth: 10_000})
	if err != nil {
		return nil // the same key twice
	}
	replacement := func() *jsonvalue.Value {
		other, _ := jsonvalue.Read([]byte(generator.value(1)), jsonvalue.Limits{Bytes: 1 << 20, Depth: 100})
		return other
	}
	var down func(v *jsonvalue.Value)
	down = func(v *jsonvalue.Value) {
		switch {
		case v.Kind == jsonvalue.Array && len(v.Items) > 0:
			at := w.r.IntN(len(v.Items))
			switch w.r.IntN(4) {
			case 0:
				v.Items = append(v.Items[:at], v.Items[at+1:]...)
			case 1:
				v.Items = append(v.Items, replacement())
			default:
				down(v.Items[at])
			}
		case v.Kind == jsonvalue.Object && len(v.Members) > 0:
			at := w.r.IntN(len(v.Members))
			if w.r.IntN(3) == 0 {
				v.Members = append(v.Members[:at], v.Members[at+1:]...)
			} else {
				down(v.Members[at].Value)
			}
		default:
			*v = *replacement()
		}
	}
	down(v)
	return json.RawMessage(write(v, ",", ":", "", ""))
}

// real goes through the real schemas.
func (w *claimWriter) real(root string, generator randomSchema) {
	files, err := filepath.Glob(root + "/*.jsonl")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, file := range files {
		lines(w.t, file, func(line []byte) {
			var c struct {
				Schema json.RawMessage
				Tests  []struct{ Data json.RawMessage }
			}
			if err := json.Unmarshal(line, &c); err != nil {
				w.t.Fatal(err)
			}
			var instances []json.RawMessage
			for _, test := range c.Tests {
				instances = append(instances, test.Data)
			}
			w.schema(c.Schema, generator, instances...)
		})
	}
}

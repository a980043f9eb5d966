package selftest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/tinsmith/tinsmith/plugins"
)

// ReferenceFile is the name of a reference in a model's directory.
const ReferenceFile = "tinsmith-reference.json"

// referenceFormat is the first line of what a reference says about itself.
const referenceFormat = "tinsmith-reference-1"

// Bounds of a reference, which may come with a model from anywhere.
const (
	maxReferenceBytes     = 8 << 20
	maxReferenceSequences = 256
	maxReferenceTokens    = 65536 // of all sequences together
)

// elsewhere is how far log-probabilities of another arithmetic may be from those that are written: of bfloat16 and float32, say. It is the value that references get; whoever makes one may write another.
const elsewhere = 0.25

// Reference is log-probabilities that the base model gave, by this program or by another.
type Reference struct {
	// Format is "tinsmith-reference-1".
	Format string `json:"format"`
	// Source says in words what computed the values.
	Source string `json:"source"`
	// Arithmetic is the identity of the arithmetic, as /healthz tells it; "" of values that another program computed.
	Arithmetic string `json:"arithmetic"`
	// Tolerance is the largest distance that is allowed where the arithmetic is the same. 0: the bits must be equal.
	Tolerance float64 `json:"tolerance"`
	// ToleranceElsewhere is the largest distance that is allowed where it is another one.
	ToleranceElsewhere float64             `json:"tolerance_elsewhere"`
	Sequences          []ReferenceSequence `json:"sequences"`
}

// ReferenceSequence is one sequence. Logprobs[i] is that of Tokens[i+1] after all tokens before it, in natural logarithms at temperature 1.
type ReferenceSequence struct {
	Tokens   []int     `json:"tokens"`
	Logprobs []float32 `json:"logprobs"`
}

// ReadReference reads a file. The error is fs.ErrNotExist where there is none.
func ReadReference(path string) (*Reference, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxReferenceBytes+1))
	if err != nil {
		return nil, err
	}
	r, err := parseReference(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func parseReference(b []byte) (*Reference, error) {
	if len(b) > maxReferenceBytes {
		return nil, fmt.Errorf("has more than %d bytes", maxReferenceBytes)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var r Reference
	if err := d.Decode(&r); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	return &r, r.validate()
}

func (r *Reference) validate() error {
	if r.Format != referenceFormat {
		return fmt.Errorf("format is %.40q; this program reads %q", r.Format, referenceFormat)
	}
	for name, v := range map[string]float64{"tolerance": r.Tolerance, "tolerance_elsewhere": r.ToleranceElsewhere} {
		if !(v >= 0 && v <= 10) {
			return fmt.Errorf("%s is %v; allowed are 0 to 10", name, v)
		}
	}
	if n := len(r.Sequences); n == 0 || n > maxReferenceSequences {
		return fmt.Errorf("sequences: there are %d; allowed are 1 to %d", n, maxReferenceSequences)
	}
	all := 0
	for i, s := range r.Sequences {
		if len(s.Tokens) < 2 || len(s.Logprobs) != len(s.Tokens)-1 {
			return fmt.Errorf("sequences[%d]: %d tokens and %d logprobs; there must be 2 tokens at least, and a logprob for each but the first", i, len(s.Tokens), len(s.Logprobs))
		}
		if all += len(s.Tokens); all > maxReferenceTokens {
			return fmt.Errorf("sequences: more than %d tokens together", maxReferenceTokens)
		}
		for j, token := range s.Tokens {
			if token < 0 || token > math.MaxInt32 {
				return fmt.Errorf("sequences[%d].tokens[%d] is %d, which is no token", i, j, token)
			}
		}
	}
	return nil // JSON has no NaN and no infinity
}

// score gives the base model's log-probabilities of a sequence, after its first token.
func (t *tests) base(ctx context.Context, s *sampler, tokens []int) ([]float32, error) {
	answer, err := s.sample(ctx, tokens, 1, 1, 0)
	if err != nil {
		return nil, err
	}
	if len(answer.PromptLogprobs) != len(tokens) {
		return nil, fmt.Errorf("/api/v1/asample: %d log-probabilities of %d tokens", len(answer.PromptLogprobs), len(tokens))
	}
	return answer.PromptLogprobs[1:], nil
}

// againstReference compares the base model with the file.
func (t *tests) againstReference(ctx context.Context, r *tally) (string, error) {
	h, err := health(ctx, t.client)
	if err != nil {
		return "", err
	}
	s, err := t.sampler(ctx, "")
	if err != nil {
		return "", err
	}
	same := h.Arithmetic != "" && plugins.SameArithmetic(t.reference.Arithmetic, h.Arithmetic)
	allowed := t.reference.ToleranceElsewhere
	if same {
		allowed = t.reference.Tolerance
	}
	var far float64
	for i, q := range t.reference.Sequences {
		got, err := t.base(ctx, s, q.Tokens)
		if err != nil {
			return "", err
		}
		where := fmt.Sprintf("sequence %d of the reference", i)
		if same && allowed == 0 {
			r.bits(where, q.Logprobs, got, 1)
			continue
		}
		for j := range got {
			r.compared++
			d := math.Abs(float64(got[j]) - float64(q.Logprobs[j]))
			far = max(far, d)
			if !(d <= allowed) {
				r.differ(fmt.Sprintf("%s, position %d", where, j+1), fmt.Sprintf("%s, at most %g away", number(q.Logprobs[j]), allowed), number(got[j]))
			}
		}
	}
	if same && allowed == 0 {
		return "made with the same arithmetic: equal bits", nil
	}
	return fmt.Sprintf("by %.60s: largest difference %.2g, allowed %g", t.reference.Source, far, allowed), nil
}

// makeReference has the base model score the texts of the self-test.
func (t *tests) makeReference(ctx context.Context) (*Reference, error) {
	h, err := health(ctx, t.client)
	if err != nil {
		return nil, err
	}
	s, err := t.sampler(ctx, "")
	if err != nil {
		return nil, err
	}
	r := &Reference{Format: referenceFormat, Source: fmt.Sprintf("tinsmith %s, %s on %s", h.Version, h.DType, h.Device), Arithmetic: h.Arithmetic, ToleranceElsewhere: elsewhere}
	for _, tokens := range t.data {
		got, err := t.base(ctx, s, tokens)
		if err != nil {
			return nil, err
		}
		r.Sequences = append(r.Sequences, ReferenceSequence{tokens, got})
	}
	return r, r.validate()
}

// Write writes the file as a whole or not at all. One that is there is replaced only with replace.
func (r *Reference) Write(path string, replace bool) (err error) {
	if _, err := os.Lstat(path); !replace && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is there already; remove it first", path)
	}
	var text strings.Builder
	e := json.NewEncoder(&text)
	if err := e.Encode(r); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // it has its name by then, or is worth nothing
	_, err = f.WriteString(text.String())
	if err := errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

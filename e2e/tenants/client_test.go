package tenants

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// answerWithin bounds every single answer.
const answerWithin = 3 * time.Minute

var transport = &http.Transport{MaxIdleConnsPerHost: 128}

// client sends requests with one key.
type client struct{ url, key string }

// object is a JSON object.
type object = map[string]any

// answer is a whole HTTP answer.
type answer struct {
	status int
	kind   string // its content type
	body   []byte
}

func (a answer) String() string { return fmt.Sprintf("%d %.400s", a.status, a.body) }

// do sends a body as it is (bytes, a reader) or as JSON, and reads the answer.
func (c client) do(ctx context.Context, method, path string, body any) (answer, error) {
	var reader io.Reader
	kind := "application/json"
	switch b := body.(type) {
	case nil:
	case []byte:
		reader, kind = bytes.NewReader(b), "application/x-protobuf"
	case io.Reader:
		reader = b
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return answer{}, err
		}
		reader = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, reader)
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("X-API-Key", c.key)
	r.Header.Set("Authorization", "Bearer "+c.key)
	r.Header.Set("Accept", "application/x-protobuf, application/json")
	if body != nil {
		r.Header.Set("Content-Type", kind)
	}
	got, err := (&http.Client{Timeout: answerWithin, Transport: transport}).Do(r)
	if err != nil {
		return answer{}, err
	}
	defer got.Body.Close()
	b, err := io.ReadAll(got.Body)
	return answer{got.StatusCode, got.Header.Get("Content-Type"), b}, err
}

// ok sends a request that must be answered with 200, and gives the JSON.
func (c client) ok(ctx context.Context, method, path string, body any) (object, error) {
	a, err := c.do(ctx, method, path, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if a.status != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s", method, path, a)
	}
	var out object
	if err := json.Unmarshal(a.body, &out); err != nil {
		return nil, fmt.Errorf("%s %s: not a JSON object: %s", method, path, a)
	}
	return out, nil
}

func (c client) post(ctx context.Context, name string, body any) (object, error) {
	return c.ok(ctx, http.MethodPost, "/api/v1/"+name, body)
}

// outcome is a finished future: JSON, or the protobuf of passes and samples.
type outcome struct {
	json     object
	protobuf []byte
}

// wait polls a future to its end.
func (c client) wait(ctx context.Context, id string) (outcome, error) {
	for {
		a, err := c.do(ctx, http.MethodPost, "/api/v1/retrieve_future", object{"request_id": id, "allow_metadata_only": false})
		switch {
		case err != nil:
			return outcome{}, fmt.Errorf("future %s: %w", id, err)
		case a.status == http.StatusRequestTimeout:
			continue
		case a.status != http.StatusOK:
			return outcome{}, fmt.Errorf("future %s: %s", id, a)
		case bytes.HasPrefix([]byte(a.kind), []byte("application/x-protobuf")):
			return outcome{protobuf: a.body}, nil
		}
		var out object
		if err := json.Unmarshal(a.body, &out); err != nil {
			return outcome{}, fmt.Errorf("future %s: not JSON: %s", id, a)
		}
		if text, failed := out["error"]; failed {
			return outcome{}, fmt.Errorf("future %s failed: %v", id, text)
		}
		if out["type"] == "try_again" {
			continue
		}
		return outcome{json: out}, nil
	}
}

// finish submits an operation and waits for its end.
func (c client) finish(ctx context.Context, name string, body any) (outcome, error) {
	submitted, err := c.post(ctx, name, body)
	if err != nil {
		return outcome{}, err
	}
	id, ok := submitted["request_id"].(string)
	if !ok {
		return outcome{}, fmt.Errorf("%s: no request_id: %v", name, submitted)
	}
	return c.wait(ctx, id)
}

func (c client) session(ctx context.Context, metadata object) (string, error) {
	made, err := c.post(ctx, "create_session", object{"tags": []string{}, "user_metadata": metadata, "sdk_version": "0.38.0", "type": "create_session"})
	if err != nil {
		return "", err
	}
	id, _ := made["session_id"].(string)
	return id, nil
}

// trainee is a run with its next number.
type trainee struct {
	client
	session, id string
	seq         int
}

// train makes a run in a session of its own.
func (c client) train(ctx context.Context, rank int) (*trainee, error) {
	session, err := c.session(ctx, object{})
	if err != nil {
		return nil, err
	}
	made, err := c.finish(ctx, "create_model", creation(session, 0, rank))
	if err != nil {
		return nil, err
	}
	id, _ := made.json["model_id"].(string)
	return &trainee{c, session, id, 0}, nil
}

func creation(session string, number, rank int) object {
	return object{"session_id": session, "model_seq_id": number, "base_model": *flagModel, "type": "create_model",
		"lora_config": object{"rank": rank, "seed": 7, "train_unembed": true, "train_mlp": true, "train_attn": true}}
}

func (r *trainee) next() int { r.seq++; return r.seq }

// step trains on one sequence: a pass and an optimizer step.
func (r *trainee) step(ctx context.Context, tokens []int32, targets []int64, rate float64) error {
	if _, err := r.finish(ctx, "forward_backward", passBytes(r.id, r.next(), tokens, targets)); err != nil {
		return err
	}
	return r.update(ctx, rate)
}

// update makes an optimizer step.
func (r *trainee) update(ctx context.Context, rate float64) error {
	_, err := r.finish(ctx, "optim_step", object{"model_id": r.id, "seq_id": r.next(), "type": "optim_step",
		"adam_params": object{"learning_rate": rate, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0, "grad_clip_norm": 0.0}})
	return err
}

// save makes weights for sampling and gives their path.
func (r *trainee) save(ctx context.Context, name string) (string, error) {
	done, err := r.finish(ctx, "save_weights_for_sampler", object{"model_id": r.id, "path": name, "seq_id": r.next(), "type": "save_weights_for_sampler"})
	if err != nil {
		return "", err
	}
	path, _ := done.json["path"].(string)
	return path, nil
}

// sampler is a sampling session with its next number.
type sampler struct {
	client
	id string
}

// sampling makes a sampling session on a checkpoint, or on the base model.
func (c client) sampling(ctx context.Context, session string, number int, path string) (sampler, error) {
	body := object{"session_id": session, "sampling_session_seq_id": number, "type": "create_sampling_session"}
	if path == "" {
		body["base_model"] = *flagModel
	} else {
		body["model_path"] = path
	}
	made, err := c.post(ctx, "create_sampling_session", body)
	if err != nil {
		return sampler{}, err
	}
	id, _ := made["sampling_session_id"].(string)
	return sampler{c, id}, nil
}

// request is one sample of a prompt. Without stops it goes on to its last token.
func (s sampler) request(number int, prompt []int32, tokens int, temperature float64) object {
	return object{"sampling_session_id": s.id, "seq_id": number, "num_samples": 1, "prompt": object{"chunks": []any{object{"type": "encoded_text", "tokens": prompt}}},
		"sampling_params": object{"max_tokens": tokens, "temperature": temperature, "top_k": -1, "top_p": 1.0, "seed": 3, "stop": []int32{}}, "type": "sample"}
}

// draw samples and waits.
func (s sampler) draw(ctx context.Context, number int, prompt []int32, tokens int, temperature float64) (sampled, error) {
	done, err := s.finish(ctx, "asample", s.request(number, prompt, tokens, temperature))
	if err != nil {
		return sampled{}, err
	}
	return readSampled(done.protobuf)
}

// sampled is what is looked at of a sampling result.
type sampled struct {
	tokens   []int32
	logprobs []uint32 // bits
	cached   int64    // prompt tokens taken from a cache
}

// readSampled reads the first sequence of a SampleResponse.
func readSampled(b []byte) (sampled, error) {
	var out sampled
	seen := false
	err := fields(b, func(n protowire.Number, bytes []byte, number uint64) error {
		switch {
		case n == 4:
			out.cached = int64(number)
		case n == 1 && !seen:
			seen = true
			return fields(bytes, func(n protowire.Number, bytes []byte, _ uint64) error {
				switch n {
				case 2:
					for i := 0; i+4 <= len(bytes); i += 4 {
						out.tokens = append(out.tokens, int32(binary.LittleEndian.Uint32(bytes[i:])))
					}
				case 3:
					for i := 0; i+4 <= len(bytes); i += 4 {
						out.logprobs = append(out.logprobs, binary.LittleEndian.Uint32(bytes[i:]))
					}
				}
				return nil
			})
		}
		return nil
	})
	if err == nil && !seen {
		err = errors.New("a sampling result without a sequence")
	}
	return out, err
}

// fields yields the fields of a message: the bytes of one, or its number.
func fields(b []byte, yield func(n protowire.Number, bytes []byte, number uint64) error) error {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		var bytes []byte
		var number uint64
		switch kind {
		case protowire.BytesType:
			bytes, size = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			number, size = protowire.ConsumeVarint(b)
		default:
			size = protowire.ConsumeFieldValue(n, kind, b)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		if err := yield(n, bytes, number); err != nil {
			return err
		}
	}
	return nil
}

// passBytes is a ForwardBackwardRequest with cross_entropy over one sequence, field by field as the public protocol has it.
func passBytes(model string, seq int, tokens []int32, targets []int64) []byte {
	text := func(b []byte, n protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), value)
	}
	number := func(b []byte, n protowire.Number, value uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), value)
	}
	tensor := func(kind uint64, data []byte) []byte {
		return text(number(text(nil, 1, data), 3, kind), 4, protowire.AppendVarint(nil, uint64(len(tokens))))
	}
	var ids, aims, weights []byte
	for i, token := range tokens {
		ids = binary.LittleEndian.AppendUint32(ids, uint32(token))
		aims = binary.LittleEndian.AppendUint64(aims, uint64(targets[i]))
		weights = binary.LittleEndian.AppendUint32(weights, math.Float32bits(1))
	}
	datum := text(nil, 1, text(nil, 1, text(nil, 1, ids)))
	datum = text(datum, 2, text(text(nil, 1, []byte("target_tokens")), 2, tensor(2, aims)))
	datum = text(datum, 2, text(text(nil, 1, []byte("weights")), 2, tensor(1, weights)))
	return text(text(number(text(nil, 1, []byte(model)), 2, uint64(seq)), 3, datum), 4, []byte("cross_entropy"))
}

// must ends a test that cannot go on.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// ramp is a sequence of tokens that differ from those of another beginning.
func ramp(from, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(64 + (from*131+i*17+i*i*from)%900)
	}
	return out
}

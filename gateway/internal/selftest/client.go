package selftest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"
)

type object map[string]any

// maxAnswer bounds what is read of one answer. The largest are passes over a few hundred tokens.
const maxAnswer = 64 << 20

// client sends requests of the Tinker API. A method that fails names the request. It may be used concurrently.
type client struct {
	server Server
	model  string
	http   *http.Client
	// patience is how long a server that is not there, or takes no work, is asked again: one that was killed loads its model first.
	patience time.Duration
}

// post sends a request and decodes the answer into out. Status 408 means that a result is not there yet, and is no error.
func (c *client) post(ctx context.Context, path string, body, out any) (status int, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	return c.send(ctx, path, "application/json", bytes.NewReader(text), out)
}

func (c *client) send(ctx context.Context, path, kind string, body io.Reader, out any) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.server.URL()+path, body)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", kind)
	r.Header.Set("X-API-Key", "tml-selftest")
	answer, err := c.http.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusRequestTimeout:
		return answer.StatusCode, nil
	default:
		return answer.StatusCode, fmt.Errorf("%s: %s: %.500s", path, answer.Status, b)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return answer.StatusCode, nil
}

// future is an operation that the server has accepted.
type future struct {
	RequestID string `json:"request_id"`
}

// submit sends an operation. It is sent again while the server's backend is away: the number of the operation has it done once.
func (c *client) submit(ctx context.Context, path string, body any) (future, error) {
	var f future
	var err error
	for begun := time.Now(); time.Since(begun) < c.patience && ctx.Err() == nil; {
		var status int
		if status, err = c.post(ctx, path, body, &f); err == nil {
			return f, nil
		}
		if status != 0 && status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
			return f, err
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return f, err
		}
	}
	return f, errors.Join(err, ctx.Err())
}

// wait decodes the result of an operation into out.
func (c *client) wait(ctx context.Context, f future, out any) error {
	for last := time.Now(); ; {
		var result json.RawMessage
		status, err := c.post(ctx, "/api/v1/retrieve_future", f, &result)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case status == http.StatusRequestTimeout:
			last = time.Now()
			continue // the server holds the request until there is news
		case status == 0 || status == http.StatusServiceUnavailable:
			if time.Since(last) > c.patience {
				return err
			}
			if err := pause(ctx, 200*time.Millisecond); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		var failed struct{ Error string }
		if err := json.Unmarshal(result, &failed); err != nil {
			return fmt.Errorf("result: %w", err)
		}
		if failed.Error != "" {
			return errors.New(failed.Error)
		}
		return json.Unmarshal(result, out)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// do is submit and wait.
func (c *client) do(ctx context.Context, path string, body, out any) error {
	f, err := c.submit(ctx, path, body)
	if err != nil {
		return err
	}
	if err := c.wait(ctx, f, out); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// tokens are those of a text, without special ones.
func (c *client) tokens(ctx context.Context, text string) ([]int, error) {
	var out struct{ Tokens []int }
	if _, err := c.post(ctx, "/tokenize", object{"model": c.model, "prompt": text, "add_special_tokens": false}, &out); err != nil {
		return nil, err
	}
	return out.Tokens, nil
}

// session begins one; what is made in it ends with the server.
func (c *client) session(ctx context.Context) (*session, error) {
	var out struct {
		ID string `json:"session_id"`
	}
	if _, err := c.post(ctx, "/api/v1/create_session", object{"tags": []string{"selftest"}, "user_metadata": object{}, "sdk_version": "selftest"}, &out); err != nil {
		return nil, err
	}
	return &session{client: c, id: out.ID}, nil
}

// session numbers what is made in it. It may not be used concurrently.
type session struct {
	*client
	id               string
	models, samplers int
}

// rank of every adapter here: enough that every matrix gets one, and small.
const rank = 8

// trainer makes an adapter from a seed.
func (s *session) trainer(ctx context.Context, seed int) (*trainer, error) {
	body := object{"session_id": s.id, "model_seq_id": s.models, "base_model": s.model, "lora_config": object{"rank": rank, "seed": seed}}
	return s.makeTrainer(ctx, "/api/v1/create_model", body)
}

// trainerFrom makes an adapter of a checkpoint's weights.
func (s *session) trainerFrom(ctx context.Context, path string) (*trainer, error) {
	return s.makeTrainer(ctx, "/api/v1/load_weights", object{"session_id": s.id, "model_seq_id": s.models, "base_model": s.model, "path": path, "optimizer": false})
}

func (s *session) makeTrainer(ctx context.Context, path string, body object) (*trainer, error) {
	s.models++
	var out struct {
		ID string `json:"model_id"`
	}
	if err := s.do(ctx, path, body, &out); err != nil {
		return nil, err
	}
	return &trainer{client: s.client, id: out.ID}, nil
}

// sampler samples from a checkpoint, or from the base model with path "".
func (s *session) sampler(ctx context.Context, path string) (*sampler, error) {
	body := object{"session_id": s.id, "sampling_session_seq_id": s.samplers, "model_path": path}
	if path == "" {
		body = object{"session_id": s.id, "sampling_session_seq_id": s.samplers, "base_model": s.model}
	}
	s.samplers++
	var out struct {
		ID string `json:"sampling_session_id"`
	}
	if _, err := s.post(ctx, "/api/v1/create_sampling_session", body, &out); err != nil {
		return nil, err
	}
	return &sampler{client: s.client, id: out.ID}, nil
}

// trainer is an adapter in training. It counts its operations, and may not be used concurrently.
type trainer struct {
	*client
	id  string
	seq int
}

func (t *trainer) next(fields object) object {
	t.seq++
	fields["model_id"], fields["seq_id"] = t.id, t.seq
	return fields
}

// logprobs are values as a server gives them. null, which stands for what JSON cannot say, is NaN.
type logprobs []float32

// UnmarshalJSON implements json.Unmarshaler.
func (l *logprobs) UnmarshalJSON(b []byte) error {
	var values []*float32
	if err := json.Unmarshal(b, &values); err != nil {
		return err
	}
	*l = make(logprobs, len(values))
	for i, v := range values {
		(*l)[i] = float32(math.NaN())
		if v != nil {
			(*l)[i] = *v
		}
	}
	return nil
}

// pass is the result of a forward or a forward_backward.
type pass struct {
	Outputs []struct {
		Logprobs struct{ Data logprobs }
	} `json:"loss_fn_outputs"`
	Metrics map[string]float64
}

// datum has every token predict the next.
func datum(tokens []int) object {
	n := len(tokens) - 1
	weights := make([]float32, n)
	for i := range weights {
		weights[i] = 1
	}
	return object{"model_input": input(tokens[:n]), "loss_fn_inputs": object{
		"target_tokens": object{"dtype": "int64", "shape": []int{n}, "data": tokens[1:]},
		"weights":       object{"dtype": "float32", "shape": []int{n}, "data": weights},
	}}
}

func input(tokens []int) object {
	return object{"chunks": []object{{"type": "encoded_text", "tokens": tokens}}}
}

func crossEntropy(data [][]int) object {
	datums := make([]object, len(data))
	for i, tokens := range data {
		datums[i] = datum(tokens)
	}
	return object{"loss_fn": "cross_entropy", "data": datums}
}

// backwardRequest and stepRequest are the next operations of the adapter, which are to be sent in any order.
func (t *trainer) backwardRequest(data [][]int) request {
	return request{"/api/v1/forward_backward", t.next(object{"forward_backward_input": crossEntropy(data)})}
}

func (t *trainer) stepRequest(rate float64) request {
	return request{"/api/v1/optim_step", t.next(object{"adam_params": object{"learning_rate": rate}})}
}

// request is an operation that is not sent yet.
type request struct {
	path string
	body object
}

func (c *client) start(ctx context.Context, r request) (future, error) {
	return c.submit(ctx, r.path, r.body)
}

// train makes steps, each awaited before the next is sent.
func (t *trainer) train(ctx context.Context, rate float64, steps ...[][]int) (passes []pass, err error) {
	for _, data := range steps {
		var p pass
		r := t.backwardRequest(data)
		if err := t.do(ctx, r.path, r.body, &p); err != nil {
			return nil, err
		}
		passes = append(passes, p)
		r = t.stepRequest(rate)
		if err := t.do(ctx, r.path, r.body, &struct{}{}); err != nil {
			return nil, err
		}
	}
	return passes, nil
}

// score gives the adapter's log-probabilities of every token after the first.
func (t *trainer) score(ctx context.Context, data [][]int) (pass, error) {
	var p pass
	err := t.do(ctx, "/api/v1/forward", t.next(object{"forward_input": crossEntropy(data)}), &p)
	return p, err
}

// save gives the path of a checkpoint of a kind: weights or weights_for_sampler.
func (t *trainer) save(ctx context.Context, kind, name string) (string, error) {
	var out struct{ Path string }
	err := t.do(ctx, "/api/v1/save_"+kind, t.next(object{"path": name}), &out)
	return out.Path, err
}

// sampler counts its requests, and may not be used concurrently.
type sampler struct {
	*client
	id  string
	seq int
}

// sampled is the result of a sampling request.
type sampled struct {
	Sequences []struct {
		Tokens   []int
		Logprobs logprobs
	}
	PromptLogprobs logprobs `json:"prompt_logprobs"`
}

func (s *sampler) sample(ctx context.Context, prompt []int, samples, length int, temperature float64) (sampled, error) {
	s.seq++
	var out sampled
	err := s.do(ctx, "/api/v1/asample", object{
		"sampling_session_id": s.id, "seq_id": s.seq - 1, "num_samples": samples, "prompt": input(prompt), "prompt_logprobs": true,
		"sampling_params": object{"max_tokens": length, "temperature": temperature, "seed": 17},
	}, &out)
	if err == nil && len(out.Sequences) != samples {
		err = fmt.Errorf("/api/v1/asample: %d sequences in place of %d", len(out.Sequences), samples)
	}
	return out, err
}

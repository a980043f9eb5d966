package ordeal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

// testKey is the key of all callers. A server that listens on loopback alone asks for none.
const testKey = "tml-of-the-tests"

// object is a JSON object.
type object = map[string]any

// caller sends requests as the SDK does: what gets no answer, or one that asks for it (408, 429, 5xx), is sent again as it was. Everything else that is not a success fails the test:
// it would reach a user.
type caller struct {
	testing.TB
	url       string
	transport *http.Transport
	repeats   *atomic.Int64 // requests that were sent again
	vocab     int           // of the model, where it is not the built-in one
}

// token is an id that the model has.
func (c caller) token(id int) int {
	if c.vocab == 0 {
		return id
	}
	return id % c.vocab
}

func newCaller(t testing.TB, url string) caller {
	tr := &http.Transport{MaxIdleConnsPerHost: 4096}
	t.Cleanup(tr.CloseIdleConnections)
	return caller{t, url, tr, &atomic.Int64{}, 0}
}

// post sends one request, of a client that takes results in protobuf; without a body it is a GET.
func post(client *http.Client, url, contentType string, body []byte) (*http.Response, error) {
	method := http.MethodPost
	if body == nil {
		method = http.MethodGet
	}
	r, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Accept", "application/x-protobuf")
	r.Header.Set("X-Api-Key", testKey)
	return client.Do(r)
}

// send makes a request until it is answered; the error says what a user would see.
func (c caller) send(path, contentType string, body []byte) (string, []byte, error) {
	client := http.Client{Transport: c.transport, Timeout: time.Minute}
	last := ""
	for deadline := time.Now().Add(within); time.Now().Before(deadline); {
		answer, err := post(&client, c.url+"/api/v1"+path, contentType, body)
		if err != nil {
			c.repeats.Add(1)
			last = err.Error()
			time.Sleep(50 * time.Millisecond)
			continue
		}
		b, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		switch {
		case err == nil && (answer.StatusCode == http.StatusOK || answer.StatusCode == http.StatusNoContent):
			return answer.Header.Get("Content-Type"), b, nil
		case err == nil && answer.StatusCode == http.StatusRequestTimeout:
			continue
		case err == nil && answer.StatusCode != http.StatusTooManyRequests && answer.StatusCode < 500:
			return "", nil, fmt.Errorf("%s: %d %.500s", path, answer.StatusCode, b)
		}
		c.repeats.Add(1)
		last = fmt.Sprintf("%d %.500s", answer.StatusCode, b)
		time.Sleep(50 * time.Millisecond)
	}
	return "", nil, fmt.Errorf("%s: no answer within %v, the last: %s", path, within, last)
}

// post sends JSON and reads JSON.
func (c caller) post(path string, body any) (object, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	_, answer, err := c.send(path, "application/json", b)
	if err != nil || len(answer) == 0 {
		return nil, err
	}
	var out object
	return out, json.Unmarshal(answer, &out)
}

// submitted is an operation that was accepted; its result is polled for when it is asked for.
type submitted struct {
	caller
	id  string
	err error
}

// submit sends what a future is made of.
func (c caller) submit(path string, body any) submitted {
	answer, err := c.post(path, body)
	id, _ := answer["request_id"].(string)
	if err == nil && id == "" {
		err = fmt.Errorf("%s: no request_id in %v", path, answer)
	}
	return submitted{c, id, err}
}

// result polls to the end: JSON, or the bytes of a protobuf message.
func (s submitted) result() (object, []byte, error) {
	if s.err != nil {
		return nil, nil, s.err
	}
	body, err := json.Marshal(object{"request_id": s.id})
	if err != nil {
		return nil, nil, err
	}
	contentType, answer, err := s.send("/retrieve_future", "application/json", body)
	if err != nil || strings.Contains(contentType, "protobuf") {
		return nil, answer, err
	}
	var out object
	if err := json.Unmarshal(answer, &out); err != nil {
		return nil, nil, err
	}
	if failure, failed := out["error"]; failed {
		return nil, nil, fmt.Errorf("%s failed: %v", s.id, failure)
	}
	return out, nil, nil
}

// must is the result of an operation that has to succeed.
func (s submitted) must() (object, []byte) {
	s.Helper()
	out, b, err := s.result()
	if err != nil {
		s.Fatal(err)
	}
	return out, b
}

func (c caller) session() string {
	c.Helper()
	answer, err := c.post("/create_session", object{"tags": []string{}, "user_metadata": object{}, "sdk_version": "0.38.0", "type": "create_session"})
	if err != nil {
		c.Fatal(err)
	}
	return answer["session_id"].(string)
}

// trainee is a run with its next number.
type trainee struct {
	caller
	session, id string
	seq         int
	mark        uint32 // if not 0, the first token of the next passes
}

// create makes the n-th run of a session.
func (c caller) create(session string, n, rank int) *trainee {
	c.Helper()
	answer, _ := c.submit("/create_model", object{"session_id": session, "model_seq_id": n, "base_model": modelName, "type": "create_model",
		"lora_config": object{"rank": rank, "seed": 7 + n, "train_unembed": true, "train_mlp": true, "train_attn": true}}).must()
	return &trainee{c, session, answer["model_id"].(string), 0, 0}
}

// resume makes the n-th run of a session from a checkpoint.
func (c caller) resume(session string, n int, path string) *trainee {
	c.Helper()
	answer, _ := c.submit("/load_weights", object{"session_id": session, "model_seq_id": n, "path": path, "optimizer": true, "type": "load_weights"}).must()
	return &trainee{c, session, answer["model_id"].(string), 0, 0}
}

func (r *trainee) next() int { r.seq++; return r.seq }

// pass submits a forward_backward over sequences that i varies.
func (r *trainee) pass(i, sequences, tokens int) submitted {
	r.Helper()
	m := &tinkerpb.ForwardBackwardRequest{ModelId: r.id, SeqId: int32(r.next()), LossFn: "cross_entropy"}
	for j := range sequences {
		ids, targets, weights := make([]byte, 0, 4*tokens), make([]byte, 0, 8*tokens), make([]byte, 0, 4*tokens)
		for k := range tokens {
			id := uint32(r.token(100 + (i*31+j*17+k*7)%900))
			if r.mark != 0 && j+k == 0 {
				id = r.mark
			}
			ids = appendUint32(ids, id)
			targets = appendUint32(appendUint32(targets, uint32(r.token(100+(i*13+j*29+k*11)%900))), 0)
			weights = appendUint32(weights, math.Float32bits(float32(k%3)/2))
		}
		m.Data = append(m.Data, &tinkerpb.Datum{
			ModelInput: []*tinkerpb.Chunk{{Chunk: &tinkerpb.Chunk_EncodedText{EncodedText: &tinkerpb.EncodedTextChunk{Tokens: ids}}}},
			LossFnInputs: map[string]*tinkerpb.Tensor{
				"target_tokens": {Encoding: &tinkerpb.Tensor_Dense{Dense: targets}, Dtype: tinkerpb.DType_DTYPE_INT64, Shape: []int64{int64(tokens)}},
				"weights":       {Encoding: &tinkerpb.Tensor_Dense{Dense: weights}, Dtype: tinkerpb.DType_DTYPE_FLOAT32, Shape: []int64{int64(tokens)}},
			},
		})
	}
	body, err := proto.Marshal(m)
	if err != nil {
		r.Fatal(err)
	}
	_, answer, err := r.send("/forward_backward", "application/x-protobuf", body)
	var out struct {
		RequestID string `json:"request_id"`
	}
	if err == nil {
		err = json.Unmarshal(answer, &out)
	}
	return submitted{r.caller, out.RequestID, err}
}

func appendUint32(b []byte, v uint32) []byte {
	return append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
}

func (r *trainee) step(rate float64) submitted {
	return r.submit("/optim_step", object{"model_id": r.id, "seq_id": r.next(), "type": "optim_step",
		"adam_params": object{"learning_rate": rate, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01, "grad_clip_norm": 1.0}})
}

func (r *trainee) save(name string) submitted {
	return r.submit("/save_weights", object{"model_id": r.id, "path": name, "seq_id": r.next(), "type": "save_weights"})
}

// load loads a checkpoint into the run, with the optimizer's state.
func (r *trainee) load(path string) submitted {
	return r.submit("/load_weights", object{"model_id": r.id, "path": path, "seq_id": r.next(), "optimizer": true, "type": "load_weights"})
}

// saveForSampler saves under a name, or without one as the n-th sampling session.
func (r *trainee) saveForSampler(name string, n int) submitted {
	body := object{"model_id": r.id, "seq_id": r.next(), "type": "save_weights_for_sampler"}
	if name != "" {
		body["path"] = name
	} else {
		body["sampling_session_seq_id"] = n
	}
	return r.submit("/save_weights_for_sampler", body)
}

// sampler makes the n-th sampling session of a session; path "" is the base model.
func (c caller) sampler(session string, n int, path string) string {
	c.Helper()
	body := object{"session_id": session, "sampling_session_seq_id": n, "type": "create_sampling_session"}
	if path != "" {
		body["model_path"] = path
	} else {
		body["base_model"] = modelName
	}
	answer, err := c.post("/create_sampling_session", body)
	if err != nil {
		c.Fatal(err)
	}
	return answer["sampling_session_id"].(string)
}

// sample asks for the n-th sample of a sampling session: two sequences of the given length.
func (c caller) sample(sampler string, n, tokens int) submitted {
	return c.sampleOf(sampler, n, tokens, []int{c.token(11), c.token(502), c.token(77), c.token(1300), c.token(9), c.token(9), c.token(2048), c.token(640)})
}

// sampleOf asks for a sample after a prompt of its own.
func (c caller) sampleOf(sampler string, n, tokens int, prompt []int) submitted {
	return c.submit("/asample", sampleBody(sampler, n, tokens, prompt))
}

func sampleBody(sampler string, n, tokens int, prompt []int) object {
	return object{"sampling_session_id": sampler, "seq_id": n, "num_samples": 2, "type": "sample",
		"prompt":          object{"chunks": []any{object{"type": "encoded_text", "tokens": prompt}}},
		"sampling_params": object{"max_tokens": tokens, "seed": 5, "stop": []int{}, "temperature": 1.0, "top_p": 1.0}}
}

// sampleWithLikeliest asks for a sample with the three likeliest tokens at each place, of the prompt too.
func (c caller) sampleWithLikeliest(sampler string, n, tokens int) submitted {
	body := sampleBody(sampler, n, tokens, []int{c.token(11), c.token(502), c.token(77), c.token(1300)})
	body["topk_sample_logprobs"], body["topk_prompt_logprobs"] = 3, 3
	return c.submit("/asample", body)
}

// series gives points of a run: steps and values of some series, in the order of their names.
func (c caller) series(run string, names ...string) string {
	c.Helper()
	_, b, err := c.send("/tinsmith/runs/"+run+"/series?names="+strings.Join(names, ","), "", nil)
	if err != nil {
		c.Fatal(err)
	}
	type curve struct {
		Name   string
		Steps  []int
		Values []float64
	}
	var answer struct{ Series []curve }
	if err := json.Unmarshal(b, &answer); err != nil {
		c.Fatal(err)
	}
	slices.SortFunc(answer.Series, func(a, b curve) int { return strings.Compare(a.Name, b.Name) })
	return fmt.Sprint(answer.Series)
}

// essence is what of a pass's answer must repeat bit by bit: all but the metrics that tell of the time and of neighbours.
func essence(t testing.TB, answer []byte) string {
	t.Helper()
	var out tinkerpb.ForwardBackwardOutput
	if err := proto.Unmarshal(answer, &out); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("loss %x", math.Float64bits(out.Metrics["loss:sum"]))
	for _, r := range out.LossFnOutputs {
		text += fmt.Sprintf(" %x", r.Fields["logprobs"].GetData())
	}
	return text
}

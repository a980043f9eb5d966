package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// answerWithin bounds every single answer except polls, which the server may hold for half a minute.
const answerWithin = 2 * time.Minute

var transport = &http.Transport{MaxIdleConnsPerHost: 64}

// client sends requests with one key.
type client struct {
	*server
	key string
}

func (s *server) as(name string) client { return client{s, s.Keys[name]} }

// answer is a whole HTTP answer.
type answer struct {
	status int
	header http.Header
	length int64 // of Content-Length, -1 without one
	body   []byte
}

func (a answer) String() string { return fmt.Sprintf("%d %.600s", a.status, a.body) }

// send makes one request. header is name, value, name, value…
func (c client) send(t testing.TB, method, path string, body io.Reader, header ...string) answer {
	t.Helper()
	r, err := http.NewRequest(method, c.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if c.key != "" {
		r.Header.Set("X-API-Key", c.key)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/x-protobuf, application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	got, err := (&http.Client{Timeout: answerWithin, Transport: transport}).Do(r)
	if err != nil {
		t.Fatalf("%s %.100s: %v", method, path, err)
	}
	defer got.Body.Close()
	b, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatalf("%s %.100s: %v", method, path, err)
	}
	return answer{got.StatusCode, got.Header, got.ContentLength, b}
}

// post sends a body as it is: text, bytes, or anything else as JSON.
func (c client) post(t testing.TB, path string, body any, header ...string) answer {
	t.Helper()
	return c.send(t, http.MethodPost, path, reader(t, body), header...)
}

func reader(t testing.TB, body any) io.Reader {
	t.Helper()
	switch b := body.(type) {
	case nil:
		return nil
	case string:
		return strings.NewReader(b)
	case []byte:
		return bytes.NewReader(b)
	case io.Reader:
		return b
	}
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(b)
}

// object is a JSON object.
type object = map[string]any

func (a answer) json(t testing.TB) object {
	t.Helper()
	var out object
	if err := json.Unmarshal(a.body, &out); err != nil {
		t.Fatalf("not a JSON object: %s", a)
	}
	return out
}

func (a answer) ok(t testing.TB) object {
	t.Helper()
	if a.status != http.StatusOK {
		t.Fatalf("refused: %s", a)
	}
	return a.json(t)
}

// refused checks a refusal: a 4xx with Content-Length, and a message with every word.
func (a answer) refused(t testing.TB, words ...string) {
	t.Helper()
	if a.status < 400 || a.status > 499 || a.status == http.StatusConflict || a.status == http.StatusTooManyRequests {
		t.Errorf("want a refusal, got %s", a)
		return
	}
	if a.length <= 0 {
		t.Errorf("a refusal without Content-Length: %s", a)
	}
	var body struct {
		Detail string
		Error  struct{ Message string }
	}
	if err := json.Unmarshal(a.body, &body); err != nil {
		t.Errorf("a refusal that is not JSON: %s", a)
		return
	}
	text := body.Detail + body.Error.Message
	if text == "" || len(text) > 2000 {
		t.Errorf("a message of %d bytes: %s", len(text), a)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("the message does not name %q: %s", w, a)
		}
	}
}

// outcome is a finished future.
type outcome struct {
	failure, category string // empty for a success
	protobuf          []byte // of passes and samples
	result            object // of everything else
}

// wait polls a future to its end.
func (c client) wait(t testing.TB, id string) outcome {
	t.Helper()
	for deadline := time.Now().Add(answerWithin); time.Now().Before(deadline); {
		got := c.post(t, "/api/v1/retrieve_future", object{"request_id": id, "allow_metadata_only": false})
		if got.status == http.StatusRequestTimeout {
			continue
		}
		if got.status != http.StatusOK {
			t.Fatalf("future %s: %s", id, got)
		}
		if strings.Contains(got.header.Get("Content-Type"), "application/x-protobuf") {
			return outcome{protobuf: got.body}
		}
		result := got.json(t)
		if text, failed := result["error"]; failed {
			return outcome{failure: fmt.Sprint(text), category: fmt.Sprint(result["category"])}
		}
		return outcome{result: result}
	}
	t.Fatalf("future %s hangs", id)
	return outcome{}
}

// finish waits for a submitted operation that must succeed.
func (c client) finish(t testing.TB, submitted answer) outcome {
	t.Helper()
	o := c.wait(t, submitted.ok(t)["request_id"].(string))
	if o.failure != "" {
		t.Fatalf("failed: %s", o.failure)
	}
	return o
}

// fails waits for a submitted operation that must fail by its caller's fault, with every word in the message.
func (c client) fails(t testing.TB, submitted answer, words ...string) {
	t.Helper()
	if submitted.status != http.StatusOK {
		t.Errorf("want a failed future, got %s", submitted)
		return
	}
	o := c.wait(t, submitted.ok(t)["request_id"].(string))
	if o.failure == "" || o.category != "user" {
		t.Errorf("want a failure of category user, got %q %q %v", o.category, o.failure, o.result)
	}
	for _, w := range words {
		if !strings.Contains(o.failure, w) {
			t.Errorf("the failure does not name %q: %s", w, o.failure)
		}
	}
	if len(o.failure) > 2000 {
		t.Errorf("a message of %d bytes", len(o.failure))
	}
}

func (c client) session(t testing.TB) string {
	t.Helper()
	return c.post(t, "/api/v1/create_session", object{"tags": []string{}, "user_metadata": object{}, "sdk_version": "0.38.0", "type": "create_session"}).ok(t)["session_id"].(string)
}

// trainee is a run with its next number.
type trainee struct {
	client
	session, id string
	seq         int
}

// create makes a run of rank 4 with a fixed seed in a session of its own.
func (c client) create(t testing.TB) *trainee {
	t.Helper()
	session := c.session(t)
	submitted := c.post(t, "/api/v1/create_model", object{"session_id": session, "model_seq_id": 0, "base_model": modelName,
		"lora_config": object{"rank": 4, "seed": 7, "train_unembed": true, "train_mlp": true, "train_attn": true}, "type": "create_model"})
	id := c.finish(t, submitted).result["model_id"].(string)
	return &trainee{c, session, id, 0}
}

func (r *trainee) next() int { r.seq++; return r.seq }

// pass submits a forward_backward under the next number.
func (r *trainee) pass(t testing.TB, p pass) answer {
	t.Helper()
	p.model, p.seq = r.id, r.next()
	return r.post(t, "/api/v1/forward_backward", p.encode(), "Content-Type", "application/x-protobuf")
}

// step submits an optim_step under the next number.
func (r *trainee) step(t testing.TB, adam any) answer {
	t.Helper()
	return r.post(t, "/api/v1/optim_step", object{"model_id": r.id, "seq_id": r.next(), "adam_params": adam, "type": "optim_step"})
}

func adam(rate float64) object {
	return object{"learning_rate": rate, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01, "grad_clip_norm": 1.0}
}

// good trains one ordinary step; i varies the data.
func (r *trainee) good(t testing.TB, i int) {
	t.Helper()
	r.finish(t, r.pass(t, ordinary(i)))
	r.finish(t, r.step(t, adam(1e-3)))
}

// weights are the bytes of the exported adapter.
func (r *trainee) weights(t testing.TB) []byte {
	t.Helper()
	name := fmt.Sprintf("weights-%d", r.seq)
	r.finish(t, r.post(t, "/api/v1/save_weights_external", object{"model_id": r.id, "path": name, "seq_id": r.next(), "type": "save_weights_external"}))
	urls := r.send(t, http.MethodGet, "/api/v1/training_runs/"+r.id+"/checkpoints/external_weights/"+name+"/external_weights_urls", nil).ok(t)["urls"].(object)
	got, err := http.Get(urls["adapter_model.safetensors"].(string))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	b, err := io.ReadAll(got.Body)
	if err != nil || got.StatusCode != http.StatusOK {
		t.Fatalf("download: %d %v", got.StatusCode, err)
	}
	return tensorBytes(t, b)
}

package hostile

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// endpoint is one operation with a body that it takes.
type endpoint struct {
	method, path string
	body         object
	// free are fields that take any JSON value, besides type and user_metadata.
	free []string
}

// endpoints lists every operation with a JSON body. Their ids are those of a live run and sampler.
func endpoints(session, run, sampler string) []endpoint {
	prompt := object{"chunks": []any{object{"type": "encoded_text", "tokens": []any{5, 6, 7}}}}
	path := "/api/v1/training_runs/" + run + "/checkpoints/weights/none"
	return []endpoint{
		{http.MethodPost, "/api/v1/client/config", object{"sdk_version": "0.38.0"}, []string{"sdk_version"}},
		{http.MethodPost, "/api/v1/create_session", object{"tags": []any{"a"}, "user_metadata": object{"k": "v"}, "sdk_version": "0.38.0", "project_id": "p", "display_name": "d", "type": "create_session"}, nil},
		{http.MethodPost, "/api/v1/session_heartbeat", object{"session_id": session}, nil},
		{http.MethodPost, "/api/v1/sessions/search", object{"owner": object{"type": "own"}, "limit": 3, "user_metadata": object{"k": "v"}, "session_id": session, "project_ids": []any{"p"}, "display_name": "d", "statuses": []any{object{"type": "active"}}, "cursor": object{"last_created_at": "2026-01-02T03:04:05Z", "last_session_id": "x"}}, nil},
		{http.MethodPost, "/api/v1/sessions/" + session + "x/finish", object{"reason": object{"type": "success"}, "detail": "d"}, nil},
		{http.MethodPut, "/api/v1/sessions/" + session + "/project", object{"project_id": "p"}, nil},
		{http.MethodPost, "/api/v1/create_model", object{"session_id": session, "model_seq_id": 50, "base_model": modelName, "lora_config": object{"rank": 4, "seed": 1, "train_mlp": true, "train_attn": true, "train_unembed": true}, "optimizer_config": object{"type": "adamw"}}, nil},
		{http.MethodPost, "/api/v1/get_info", object{"model_id": run}, nil},
		{http.MethodPost, "/api/v1/unload_model", object{"model_id": "none"}, nil},
		{http.MethodPost, "/api/v1/optim_step", object{"model_id": run, "seq_id": 90000, "adam_params": adam(1e-4)}, nil},
		{http.MethodPost, "/api/v1/save_weights", object{"model_id": run, "path": "fields", "seq_id": 90001, "ttl_seconds": 3600, "overwrite": true, "user_metadata": object{"k": "v"}}, nil},
		{http.MethodPost, "/api/v1/save_weights_for_sampler", object{"model_id": run, "path": "fields", "seq_id": 90002, "ttl_seconds": 3600, "user_metadata": object{"k": "v"}, "kind": "snapshot"}, nil},
		{http.MethodPost, "/api/v1/save_weights_for_sampler", object{"model_id": run, "sampling_session_seq_id": 70, "seq_id": 90003, "ttl_seconds": 3600, "kind": "snapshot"}, nil},
		{http.MethodPost, "/api/v1/save_weights_external", object{"model_id": run, "path": "fields", "seq_id": 90004, "ttl_seconds": 3600, "age_encryption_recipients": []any{}}, nil},
		{http.MethodPost, "/api/v1/load_weights", object{"session_id": session, "model_seq_id": 51, "path": "tinker://" + run + "/weights/none", "optimizer": true, "base_model": modelName, "user_metadata": object{"k": "v"}, "optimizer_config": object{"type": "adamw"}, "weights_access_token": "t"}, nil},
		{http.MethodPost, "/api/v1/load_weights", object{"model_id": run, "seq_id": 90005, "path": "tinker://" + run + "/weights/none", "optimizer": true}, nil},
		{http.MethodPost, "/api/v1/create_sampling_session", object{"session_id": session, "sampling_session_seq_id": 60, "base_model": modelName, "model_path": "tinker://" + run + "/sampler_weights/none"}, nil},
		{http.MethodPost, "/api/v1/join_sampling_session", object{"sampling_session_id": sampler}, nil},
		{http.MethodPost, "/api/v1/asample", object{"sampling_session_id": sampler, "seq_id": 1000, "num_samples": 1, "prompt": prompt, "sampling_params": object{"max_tokens": 1, "seed": 1, "stop": []any{7}, "temperature": 1.0, "top_k": 5, "top_p": 0.9},
			"prompt_logprobs": true, "topk_prompt_logprobs": 2, "topk_sample_logprobs": 2, "prompt_alt_tokens_k": 2, "prompt_logprobs_last_n": 1, "record_stability_info": false,
			"target_prompt_logprobs": object{"data": []any{1, 2}, "dtype": "int64", "shape": []any{2, 1}}}, nil},
		{http.MethodPost, "/api/v1/retrieve_future", object{"request_id": sampler + ":77777777", "allow_metadata_only": false}, nil},
		{http.MethodPost, "/api/v1/retrieve_futures", object{"target": object{"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0}, "prev_cursor": 0, "timeout": 0, "retrieved_request_ids": []any{"x"}}, nil},
		{http.MethodPost, "/api/v1/cancel_future", object{"request_id": "none"}, nil},
		{http.MethodPost, "/api/v1/weights_info", object{"tinker_path": "tinker://" + run + "/weights/none"}, nil},
		{http.MethodPost, "/api/v1/copy_weights", object{"source_path": "tinker://" + run + "/weights/none", "destination_project_id": "p", "session_id": session, "model_seq_id": 52, "ttl_seconds": 3600, "weights_access_token": "t"}, nil},
		{http.MethodPut, path + "/ttl", object{"ttl_seconds": 3600}, nil},
		{http.MethodPost, "/api/v1/telemetry", object{"events": []any{}, "platform": "linux", "sdk_version": "0.38.0", "session_id": session}, []string{"events", "platform", "sdk_version", "session_id"}},
		{http.MethodPost, "/v1/chat/completions", object{"model": modelName, "messages": []any{object{"role": "user", "content": "hi"}}, "max_tokens": 1, "temperature": 1, "top_p": 0.9, "n": 1, "stop": []any{"x"}, "seed": 1, "logprobs": true, "top_logprobs": 1,
			"presence_penalty": 0.1, "frequency_penalty": 0.1, "logit_bias": object{"5": 1}, "stream": false, "user": "u", "tools": []any{}, "response_format": object{"type": "text"}}, []string{"user"}},
		{http.MethodPost, "/v1/completions", object{"model": modelName, "prompt": "hi", "max_tokens": 1, "temperature": 1, "top_p": 0.9, "n": 1, "stop": []any{"x"}, "seed": 1, "logprobs": 1, "echo": false, "best_of": 1, "suffix": "", "presence_penalty": 0.1, "frequency_penalty": 0.1, "logit_bias": object{"5": 1}, "stream": false, "add_special_tokens": true}, []string{"prompt"}},
		{http.MethodPost, "/tokenize", object{"model": modelName, "prompt": "hi", "add_special_tokens": true}, nil},
		{http.MethodPost, "/detokenize", object{"model": modelName, "tokens": []any{1, 2}}, nil},
	}
}

// wrongValues are put in place of every value of every body, as raw JSON.
var wrongValues = []string{
	`null`, `true`, `"x"`, `""`, `-1`, `0`, `1.5`, `1e19`, `1e400`, `9223372036854775808`, `-9223372036854775809`, `[]`, `{}`, `[[]]`, `["x"]`, `[null]`, `[-1]`, `[1e19]`, `{"x":"y"}`,
	`"\u0000"`, `"\ud800"`, `"../../../etc/passwd"`, `NaN`, `-Infinity`, `[5000000]`, `"NaN"`,
}

// places calls visit for every value in a body, with the names that lead to it and a function that gives the body with other JSON in its place.
func places(body any, visit func(path []string, replace func(raw string) string)) {
	var walk func(v any, path []string, set func(any) string)
	walk = func(v any, path []string, set func(any) string) {
		if len(path) > 0 {
			visit(path, func(raw string) string {
				const mark = "\x01mark\x01"
				marked, _ := json.Marshal(mark)
				return strings.Replace(set(mark), string(marked), raw, 1)
			})
		}
		switch v := v.(type) {
		case object:
			for k, inner := range v {
				walk(inner, append(path[:len(path):len(path)], k), func(x any) string {
					v[k] = x
					defer func() { v[k] = inner }()
					return set(v)
				})
			}
		case []any:
			for i, inner := range v {
				walk(inner, append(path[:len(path):len(path)], fmt.Sprint(i)), func(x any) string {
					v[i] = x
					defer func() { v[i] = inner }()
					return set(v)
				})
			}
		}
	}
	walk(body, nil, func(x any) string {
		b, err := json.Marshal(x)
		if err != nil {
			panic(err)
		}
		return string(b)
	})
}

// acceptable checks an answer to a request that may or may not be wrong: a success, or a refusal that says why.
func (a answer) acceptable(t *testing.T, sent string) {
	t.Helper()
	switch {
	case a.status == http.StatusOK, a.status == http.StatusNoContent, a.status == http.StatusRequestTimeout:
		return
	case a.status < 400 || a.status > 499 || a.status == http.StatusConflict:
		t.Errorf("%.300s: got %s", sent, a)
		return
	}
	var body struct {
		Detail string
		Error  struct{ Message string }
	}
	text := ""
	if json.Unmarshal(a.body, &body) == nil {
		text = body.Detail + body.Error.Message
	}
	if a.length <= 0 || text == "" || len(text) > 2000 {
		t.Errorf("%.300s: a bad refusal, %d bytes: %s", sent, a.length, a)
	}
}

// sameKind says whether a wrong value has the JSON type of the right one, so that it may well be accepted.
func sameKind(right any, wrong string) bool {
	if wrong == "null" {
		return true
	}
	var w any
	if json.Unmarshal([]byte(wrong), &w) != nil {
		return false
	}
	return fmt.Sprintf("%T", w) == fmt.Sprintf("%T", normal(right))
}

func normal(v any) any {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	var out any
	if err := json.Unmarshal(b, &out); err != nil {
		panic(err)
	}
	return out
}

func at(body any, path []string) any {
	for _, p := range path {
		switch b := body.(type) {
		case object:
			body = b[p]
		case []any:
			body = b[0]
		}
	}
	return body
}

// TestEveryField puts every wrong value into every field of every endpoint. None may be answered with anything but a success or a refusal that says why, and a value of
// another JSON type never with a success.
func TestEveryField(t *testing.T) {
	s := start(t)
	ann := s.as("ann")
	run := ann.create(t)
	sampler := ann.post(t, "/api/v1/create_sampling_session", object{"session_id": run.session, "sampling_session_seq_id": 0, "base_model": modelName}).ok(t)["sampling_session_id"].(string)
	for _, e := range endpoints(run.session, run.id, sampler) {
		t.Run(strings.Trim(strings.ReplaceAll(e.path, run.id, "RUN"), "/"), func(t *testing.T) {
			began := time.Now()
			count := 0
			try := func(body string, mustRefuse bool, words ...string) {
				t.Helper()
				count++
				got := ann.send(t, e.method, e.path, strings.NewReader(body))
				got.acceptable(t, body)
				if mustRefuse && got.status < 300 {
					t.Errorf("%.300s: accepted", body)
				}
				if mustRefuse && got.status == http.StatusBadRequest {
					got.refused(t, words...)
				}
			}
			for _, body := range []string{"", "null", "[]", "5", `"x"`, "{", "{}", `{"a":1}}`, "\xff\xfe", "\x00", strings.Repeat("[", 1<<20), strings.Repeat(`{"a":`, 1<<18), `{"type":` + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + `}`} {
				try(body, false)
			}
			places(normal(e.body), func(path []string, replace func(string) string) {
				for _, wrong := range wrongValues {
					free := sameKind(at(e.body, path), wrong)
					if path[0] == "type" || path[0] == "user_metadata" && len(path) > 1 || slices.Contains(e.free, path[0]) {
						free = true
					}
					valid := json.Valid([]byte(wrong))
					free = free && (valid || slices.Contains(e.free, path[0]))
					// The stop of sampling has several types.
					free = free || path[0] == "logprobs" && wrong == "true" // a number in one endpoint, and true there as well
					free = free || path[0] == "stop" && valid || len(path) > 1 && path[1] == "stop" && valid || path[len(path)-1] == "content"
					words := []string{path[0]}
					if !valid {
						words = nil
					}
					try(replace(wrong), !free, words...)
				}
			})
			t.Logf("%d requests in %v", count, time.Since(began).Round(time.Millisecond))
		})
	}
	run.seq = 95000
	run.good(t, 1)
}

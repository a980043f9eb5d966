package hostile

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestWrongSamples sends what has the right types and cannot be meant.
func TestWrongSamples(t *testing.T) {
	ann := start(t).as("ann")
	session := ann.session(t)
	sampler := ann.post(t, "/api/v1/create_sampling_session", object{"session_id": session, "sampling_session_seq_id": 0, "base_model": modelName}).ok(t)["sampling_session_id"].(string)
	seq := 0
	request := func(change func(body, params object)) object {
		seq++
		params := object{"max_tokens": 2, "temperature": 1.0, "top_k": -1, "top_p": 1.0, "seed": 3, "stop": []int{}}
		body := object{"sampling_session_id": sampler, "seq_id": seq, "num_samples": 1, "prompt": object{"chunks": []any{object{"type": "encoded_text", "tokens": []int{5, 6, 7}}}},
			"sampling_params": params, "prompt_logprobs": false, "topk_prompt_logprobs": 0, "topk_sample_logprobs": 0, "prompt_alt_tokens_k": 0, "record_stability_info": false, "type": "sample"}
		if change != nil {
			change(body, params)
		}
		return body
	}
	tokens := func(ids ...int) object {
		return object{"chunks": []any{object{"type": "encoded_text", "tokens": ids}}}
	}
	first := ann.wait(t, ann.post(t, "/api/v1/asample", request(nil)).ok(t)["request_id"].(string))
	for _, c := range []struct {
		name   string
		change func(body, params object)
		words  []string
	}{
		{"no session", func(b, _ object) { delete(b, "sampling_session_id") }, []string{"sampling_session_id"}},
		{"unknown session", func(b, _ object) { b["sampling_session_id"] = "nobody:sample:0" }, []string{"nobody:sample:0"}},
		{"a number that is text", func(b, _ object) { b["seq_id"] = "next" }, []string{"seq_id"}},
		{"negative number", func(b, _ object) { b["seq_id"] = -1 }, []string{"seq_id", "-1"}},
		{"no prompt", func(b, _ object) { delete(b, "prompt") }, []string{"prompt"}},
		{"no tokens", func(b, _ object) { b["prompt"] = tokens() }, []string{"prompt"}},
		{"no chunks", func(b, _ object) { b["prompt"] = object{"chunks": []any{}} }, []string{"prompt"}},
		{"image", func(b, _ object) {
			b["prompt"] = object{"chunks": []any{object{"type": "image", "data": "aGk=", "format": "png"}}}
		}, []string{"prompt.chunks[0]", "image"}},
		{"unknown chunk", func(b, _ object) { b["prompt"] = object{"chunks": []any{object{"type": strings.Repeat("z", 100000)}}} }, []string{"prompt.chunks[0].type", "encoded_text"}},
		{"token out of vocabulary", func(b, _ object) { b["prompt"] = tokens(5, 4096) }, []string{"prompt", "4096", "4095"}},
		{"negative token", func(b, _ object) { b["prompt"] = tokens(5, -1) }, []string{"prompt", "-1"}},
		{"token beyond 32 bits", func(b, _ object) { b["prompt"] = tokens(1 << 33) }, []string{"prompt"}},
		{"over the context", func(b, p object) { b["prompt"] = tokens(repeat(4095, 5)...) }, []string{"Prompt length plus max_tokens exceeds", "4095 prompt tokens + 2 max_tokens > 4096"}},
		{"prompt over the context", func(b, p object) { b["prompt"] = tokens(repeat(100000, 5)...); delete(p, "max_tokens") }, []string{"Prompt length plus max_tokens exceeds", "100000"}},
		{"huge max_tokens", func(_, p object) { p["max_tokens"] = 1 << 62 }, []string{"max_tokens", "4096"}},
		{"largest max_tokens", func(_, p object) { p["max_tokens"] = int64(1<<63 - 1) }, []string{"max_tokens", "4096"}},
		{"negative max_tokens", func(_, p object) { p["max_tokens"] = -1 }, []string{"max_tokens", "-1"}},
		{"negative temperature", func(_, p object) { p["temperature"] = -0.5 }, []string{"temperature", "-0.5"}},
		{"top_p 0", func(_, p object) { p["top_p"] = 0 }, []string{"top_p", "0"}},
		{"top_p above 1", func(_, p object) { p["top_p"] = 1.5 }, []string{"top_p", "1.5"}},
		{"top_k below -1", func(_, p object) { p["top_k"] = -7 }, []string{"top_k", "-7"}},
		{"no samples", func(b, _ object) { b["num_samples"] = 0 }, []string{"num_samples", "0"}},
		{"negative samples", func(b, _ object) { b["num_samples"] = -1 }, []string{"num_samples", "-1"}},
		{"too many samples", func(b, _ object) { b["num_samples"] = 1 << 30 }, []string{"num_samples", "1073741824", "1024"}},
		{"negative top prompt", func(b, _ object) { b["topk_prompt_logprobs"] = -1 }, []string{"topk_prompt_logprobs", "-1"}},
		{"huge top prompt", func(b, _ object) { b["topk_prompt_logprobs"] = 1 << 40 }, []string{"topk_prompt_logprobs"}},
		{"top prompt above the vocabulary", func(b, _ object) { b["topk_prompt_logprobs"] = 4097 }, []string{"topk_prompt_logprobs", "4097"}},
		{"huge top sampled", func(b, _ object) { b["topk_sample_logprobs"] = 5000 }, []string{"topk_sample_logprobs", "5000"}},
		{"huge alternatives", func(b, _ object) { b["prompt_alt_tokens_k"] = 1 << 20 }, []string{"prompt_alt_tokens_k", "1048576"}},
		{"last 0", func(b, _ object) { b["prompt_logprobs"], b["prompt_logprobs_last_n"] = true, 0 }, []string{"prompt_logprobs_last_n", "0"}},
		{"last of all", func(b, _ object) { b["prompt_logprobs"], b["prompt_logprobs_last_n"] = true, 3 }, []string{"prompt_logprobs_last_n", "3", "2"}},
		{"last without prompt", func(b, _ object) { b["prompt_logprobs_last_n"] = 1 }, []string{"prompt_logprobs_last_n", "prompt_logprobs"}},
		{"too many stops", func(_, p object) { p["stop"] = repeat(100000, "x") }, []string{"stop"}},
		{"too many stop tokens", func(_, p object) { p["stop"] = repeat(100000, 5) }, []string{"stop"}},
		{"long stop", func(_, p object) { p["stop"] = strings.Repeat("x", 1<<20) }, []string{"stop"}},
		{"empty stop", func(_, p object) { p["stop"] = []string{""} }, []string{"stop"}},
		{"stop token out of vocabulary", func(_, p object) { p["stop"] = []int{4096} }, []string{"stop", "4096"}},
		{"negative stop token", func(_, p object) { p["stop"] = []int{-1} }, []string{"stop", "-1"}},
		{"mixed stops", func(_, p object) { p["stop"] = []any{"x", 5} }, []string{"stop"}},
		{"target out of vocabulary", func(b, _ object) {
			b["target_prompt_logprobs"] = object{"data": []int{5, 4096}, "dtype": "int64", "shape": []int{2, 1}}
		}, []string{"target_prompt_logprobs", "4096"}},
		{"target below -1", func(b, _ object) {
			b["target_prompt_logprobs"] = object{"data": []int{5, -2}, "dtype": "int64", "shape": []int{2, 1}}
		}, []string{"target_prompt_logprobs", "-2"}},
		{"targets of other rows", func(b, _ object) {
			b["target_prompt_logprobs"] = object{"data": []int{5, 6, 7}, "dtype": "int64", "shape": []int{3, 1}}
		}, []string{"target_prompt_logprobs.shape", "[3 1]"}},
		{"targets that overflow", func(b, _ object) {
			b["target_prompt_logprobs"] = object{"data": []int{}, "dtype": "int64", "shape": []int{2, 1 << 62}, "sparse_crow_indices": []int{0, 0, 0}, "sparse_col_indices": []int{}}
		}, []string{"target_prompt_logprobs"}},
		{"huge sparse targets", func(b, _ object) {
			b["target_prompt_logprobs"] = object{"data": []int{}, "dtype": "int64", "shape": []int{2, 8 << 20}, "sparse_crow_indices": []int{0, 0, 0}, "sparse_col_indices": []int{}}
		}, []string{"target_prompt"}},
		{"many dimensions", func(b, _ object) {
			b["target_prompt_logprobs"] = object{"data": []int{}, "dtype": "int64", "shape": repeat(100000, 1)}
		}, []string{"target_prompt_logprobs", "100000"}},
		{"float targets", func(b, _ object) {
			b["target_prompt_logprobs"] = object{"data": []int{1, 2}, "dtype": "float32", "shape": []int{2, 1}}
		}, []string{"target_prompt_logprobs.dtype", "float32"}},
		{"base_model", func(b, _ object) { b["base_model"] = modelName }, []string{"base_model"}},
		{"samples too large", func(b, p object) {
			b["num_samples"], p["max_tokens"], b["topk_sample_logprobs"] = 1024, 4000, 1000
		}, []string{"topk_sample_logprobs"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ann.post(t, "/api/v1/asample", request(c.change))
			got.refused(t, c.words...)
		})
	}
	t.Run("reused number", func(t *testing.T) {
		a, b := request(nil), request(nil)
		ann.post(t, "/api/v1/asample", a).ok(t)
		b["seq_id"], b["num_samples"] = a["seq_id"], 2
		ann.post(t, "/api/v1/asample", b).refused(t, "seq_id")
	})
	again := request(nil)
	again["seq_id"] = 1 << 60
	if got := ann.wait(t, ann.post(t, "/api/v1/asample", again).ok(t)["request_id"].(string)); fmt.Sprint(sampledTokens(t, got.protobuf)) != fmt.Sprint(sampledTokens(t, first.protobuf)) {
		t.Error("the same seed gives other tokens after the refusals")
	}
}

// TestWrongChats sends OpenAI requests whose types are right.
func TestWrongChats(t *testing.T) {
	ann := start(t).as("ann")
	message := func(role string, content any) []any { return []any{object{"role": role, "content": content}} }
	deep := any("x")
	for range 2000 {
		deep = []any{deep}
	}
	for _, c := range []struct {
		name, path string
		body       object
		words      []string
	}{
		{"no model", "/v1/chat/completions", object{"messages": message("user", "hi")}, []string{"model"}},
		{"unknown model", "/v1/chat/completions", object{"model": "gpt-x", "messages": message("user", "hi")}, []string{"gpt-x"}},
		{"unknown checkpoint", "/v1/chat/completions", object{"model": "tinker://nobody:train:0/sampler_weights/x", "messages": message("user", "hi")}, []string{"nobody"}},
		{"path", "/v1/chat/completions", object{"model": "tinker://../../../etc/sampler_weights/passwd", "messages": message("user", "hi")}, []string{"tinker://"}},
		{"no messages", "/v1/chat/completions", object{"model": modelName, "messages": []any{}}, []string{"messages"}},
		{"unknown role", "/v1/chat/completions", object{"model": modelName, "messages": message("king", "hi")}, []string{"messages[0].role", "king"}},
		{"content parts", "/v1/chat/completions", object{"model": modelName, "messages": message("user", []any{object{"type": "image_url", "image_url": object{"url": "http://x"}}})}, []string{"messages[0].content[0].type", "text"}},
		{"deep content", "/v1/chat/completions", object{"model": modelName, "messages": message("user", deep)}, []string{"messages[0]", "deep"}},
		{"over the context", "/v1/chat/completions", object{"model": modelName, "messages": message("user", strings.Repeat("a b c ", 20000))}, []string{"4096"}},
		{"huge n", "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "n": 100000}, []string{"n", "100000"}},
		{"huge max_tokens", "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "max_tokens": 1 << 40}, []string{"max_tokens"}},
		{"negative max_tokens", "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "max_tokens": -1}, []string{"max_tokens", "-1"}},
		{"temperature", "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "temperature": 99}, []string{"temperature", "99"}},
		{"top_p", "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "top_p": -1}, []string{"top_p", "-1"}},
		{"penalty", "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "presence_penalty": 3}, []string{"presence_penalty", "3"}},
		{"bias of a stranger", "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "logit_bias": object{"99999": 1}}, []string{"logit_bias", "99999"}},
		{"bias of no token", "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "logit_bias": object{"x": 1}}, []string{"logit_bias"}},
		{"bias out of range", "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "logit_bias": object{"5": 1e9}}, []string{"logit_bias"}},
		{"top_logprobs", "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "logprobs": true, "top_logprobs": 1 << 20}, []string{"top_logprobs"}},
		{"stops", "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "stop": repeat(10000, "x")}, []string{"stop"}},
		{"tools", "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "tools": []any{object{"type": "function"}}}, []string{"tools"}},
		{"json_schema", "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "response_format": object{"type": "json_schema"}}, []string{"response_format"}},
		{"token out of vocabulary", "/v1/completions", object{"model": modelName, "prompt": []int{4096}, "max_tokens": 1}, []string{"prompt", "4096"}},
		{"empty prompts", "/v1/completions", object{"model": modelName, "prompt": []any{}, "max_tokens": 1}, []string{"prompt"}},
		{"mixed prompts", "/v1/completions", object{"model": modelName, "prompt": []any{"a", 5}, "max_tokens": 1}, []string{"prompt"}},
		{"many prompts", "/v1/completions", object{"model": modelName, "prompt": repeat(100000, "a"), "max_tokens": 1}, []string{"prompt"}},
		{"detokenize a stranger", "/detokenize", object{"model": modelName, "tokens": []int{99999}}, []string{"tokens", "99999"}},
	} {
		t.Run(c.name, func(t *testing.T) { ann.post(t, c.path, c.body).refused(t, c.words...) })
	}
	ann.post(t, "/v1/chat/completions", object{"model": modelName, "messages": message("user", "hi"), "max_tokens": 2}).ok(t)
}

// TestWrongNames tries to make checkpoints mean something else than themselves.
func TestWrongNames(t *testing.T) {
	ann := start(t).as("ann")
	run := ann.create(t)
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/etc/passwd", "a\x00b", "a%2fb", "..%2f..%2fx", strings.Repeat("n", 100000), "naïve", "\u202etxt", "a b", "a\nb", `a\b`, ".hidden", "con:1", "~", "$HOME", "*"} {
		t.Run(fmt.Sprintf("%.20q", name), func(t *testing.T) {
			for _, path := range []string{"save_weights", "save_weights_for_sampler", "save_weights_external"} {
				got := run.post(t, "/api/v1/"+path, object{"model_id": run.id, "path": name, "seq_id": run.next(), "overwrite": true})
				if got.status == http.StatusOK {
					run.fails(t, got, "name")
					continue
				}
				got.refused(t)
			}
		})
	}
	for _, ttl := range []any{0, -1, int64(1) << 62, 1e30, "soon", 1.5} {
		t.Run(fmt.Sprint("ttl ", ttl), func(t *testing.T) {
			got := run.post(t, "/api/v1/save_weights", object{"model_id": run.id, "path": "ttl", "seq_id": run.next(), "overwrite": true, "ttl_seconds": ttl})
			if got.status == http.StatusOK {
				run.fails(t, got, "ttl_seconds")
			} else {
				got.refused(t, "ttl_seconds")
			}
		})
	}
	for _, path := range []string{"", "x", "tinker://", "tinker://a/b", "tinker://a/weights/../../x", "file:///etc/passwd", "tinker://" + run.id + "/nothing/x", "tinker://" + run.id + "/weights/", "tinker://" + run.id + "/weights/none", strings.Repeat("tinker://", 10000)} {
		t.Run(fmt.Sprintf("path %.40q", path), func(t *testing.T) {
			ann.post(t, "/api/v1/weights_info", object{"tinker_path": path}).refused(t)
			ann.post(t, "/api/v1/copy_weights", object{"source_path": path, "destination_project_id": "p"}).refused(t)
			ann.post(t, "/api/v1/load_weights", object{"session_id": run.session, "model_seq_id": 9, "path": path, "optimizer": false}).refused(t)
			if path != "" {
				ann.post(t, "/api/v1/create_sampling_session", object{"session_id": run.session, "sampling_session_seq_id": 9, "model_path": path}).refused(t)
			}
		})
	}
	for _, path := range []string{"/api/v1/training_runs/..%2f..%2f", "/api/v1/training_runs/" + run.id + "/checkpoints/weights/..%2f..%2fx/archive", "/api/v1/files/..%2f..%2fetc%2fpasswd", "/api/v1/archives/%00", "/api/v1/traces/x", "/api/v1/samplers/%ff%fe",
		"/v1/models/..%2f..%2fetc", "/v1/models/tinker:%2F%2Fx", "/api/v1/training_runs/" + run.id + "/checkpoints/weights/x%00/archive", "/api/v1/training_runs?limit=-1", "/api/v1/training_runs?limit=x", "/api/v1/training_runs?offset=99999999999999999999",
		"/api/v1/checkpoints?limit=1000000", "/api/v1/sessions?access_scope=all", "/tokenizer_info?model=nobody"} {
		t.Run("GET "+path[:min(len(path), 60)], func(t *testing.T) { ann.send(t, http.MethodGet, path, nil).refused(t) })
	}
	run.good(t, 1)
}

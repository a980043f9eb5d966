// Package clients runs Go clients of the OpenAI API, and the client commands of the program, against the real server.
package clients

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sashabaranov/go-openai"
)

const model = "tinsmith/tiny-chat"

// binary gives the path of the program, if it is built.
func binary(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/tinsmith")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skip("bin/tinsmith is not built: run make build")
	}
	return path
}

// serve starts the program with the built-in model and gives its address.
func serve(t *testing.T) string {
	t.Helper()
	program, dir := binary(t), t.TempDir()
	modelDir, err := filepath.Abs("../../configs/models/tiny-chat")
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{ // JSON is YAML
		"listen": "127.0.0.1:0", "data_dir": filepath.Join(dir, "data"),
		"models": []any{map[string]any{"name": model, "path": modelDir, "backend": map[string]any{"plugin": "single", "device": "cpu"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "tinsmith.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, "serve", "--config", file)
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		address, err := os.ReadFile(filepath.Join(dir, "data", "address"))
		if err != nil {
			continue
		}
		url := strings.TrimSpace(string(address))
		if res, err := http.Get(url + "/healthz"); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return url
			}
		}
	}
	text, _ := os.ReadFile(log.Name())
	t.Fatalf("the server was not ready within 2 minutes:\n%s", text)
	return ""
}

func TestGoClients(t *testing.T) {
	url := serve(t)
	config := openai.DefaultConfig("not-needed")
	config.BaseURL = url + "/v1"
	client := openai.NewClientWithConfig(config)
	seed := 5
	ask := openai.ChatCompletionRequest{Model: model, MaxTokens: 16, Seed: &seed, Messages: []openai.ChatCompletionMessage{{Role: "user", Content: "What is 2 + 3?"}}}
	whole, err := client.CreateChatCompletion(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}

	t.Run("plain", func(t *testing.T) {
		if whole.Choices[0].Message.Content == "" || whole.Usage.TotalTokens != whole.Usage.PromptTokens+whole.Usage.CompletionTokens {
			t.Errorf("%+v", whole)
		}
	})
	t.Run("stream", func(t *testing.T) {
		request := ask
		request.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
		stream, err := client.CreateChatCompletionStream(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		text, used := "", 0
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range part.Choices {
				text += c.Delta.Content
			}
			if part.Usage != nil {
				used = part.Usage.TotalTokens
			}
		}
		if text != whole.Choices[0].Message.Content || used != whole.Usage.TotalTokens {
			t.Errorf("streamed %q with %d tokens, whole %q with %d", text, used, whole.Choices[0].Message.Content, whole.Usage.TotalTokens)
		}
	})
	t.Run("n, stop, logprobs", func(t *testing.T) {
		request := ask
		request.N, request.Stop, request.LogProbs, request.TopLogProbs = 3, []string{"never seen"}, true, 2
		answer, err := client.CreateChatCompletion(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if len(answer.Choices) != 3 || len(answer.Choices[2].LogProbs.Content[0].TopLogProbs) != 2 {
			t.Errorf("%+v", answer)
		}
	})
	t.Run("errors", func(t *testing.T) {
		request := ask
		request.Model = "no/model"
		_, err := client.CreateChatCompletion(t.Context(), request)
		var refused *openai.APIError
		if !errors.As(err, &refused) || refused.HTTPStatusCode != http.StatusNotFound || refused.Code != "model_not_found" {
			t.Errorf("%v", err)
		}
	})
	run := func(t *testing.T, input string, arguments ...string) (string, error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := exec.CommandContext(ctx, binary(t), append(arguments, "--url", url)...)
		c.Stdin = strings.NewReader(input)
		out, err := c.CombinedOutput()
		return string(out), err
	}
	t.Run("tinsmith chat", func(t *testing.T) {
		first, err := run(t, "What is 2 + 3?\n", "chat", "--temperature", "0")
		if err != nil || strings.TrimSpace(first) == "" {
			t.Fatalf("%v: %s", err, first)
		}
		both, err := run(t, "What is 2 + 3?\nAnd 4 + 4?\n", "chat", "--temperature", "0", "--model", model)
		if err != nil || !strings.HasPrefix(both, first) || len(both) == len(first) {
			t.Errorf("%v: %q, one turn gave %q", err, both, first)
		}
		if out, err := run(t, "hello\n", "chat", "--model", "no/model"); err == nil || !strings.Contains(out, "no/model") {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("tinsmith models and runs", func(t *testing.T) {
		if out, err := run(t, "", "models"); err != nil || !strings.Contains(out, model) {
			t.Errorf("%v: %s", err, out)
		}
		if out, err := run(t, "", "runs"); err != nil || !strings.HasPrefix(out, "RUN") {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("tinsmith import", func(t *testing.T) {
		if out, err := run(t, "", "import", t.TempDir(), "--base", model); err == nil || !strings.Contains(out, "not a PEFT adapter") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

package hostile

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// TestLargeChats sends eight large chats at once. None can be answered, so none may take much.
func TestLargeChats(t *testing.T) {
	s := start(t)
	ann := s.as("ann")
	chat := func(begin, part string, size int) string {
		return `{"model":"` + modelName + `","messages":[` + begin + strings.Repeat(part, size/len(part)) + `"}]}`
	}
	const begin = `{"role":"user","content":"`
	for _, c := range []struct {
		name   string
		body   string
		status int
	}{
		{"60 MB of text", chat(begin, "hello there, ", 60_000_000), 413},
		{"15 MB of text", chat(begin, "hello there, ", 15_000_000), 0},
		{"1 MB of text", chat(begin, "hello there, ", 1_000_000), 400},
		{"15 MB of messages", chat(``, `{"role":"user","content":"hello"},`, 15_000_000), 0},
		{"15 MB of numbers", chat(``, `0,`, 15_000_000), 0},
		{"1 MB of parts", chat(`{"role":"user","content":[`, `1e1,`, 1_000_000), 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := s.ForgetPeak(t)
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					got := ann.send(t, http.MethodPost, "/v1/chat/completions", strings.NewReader(c.body))
					if got.status != c.status && (c.status != 0 || got.status != 400 && got.status != 413 && got.status != 503) {
						t.Errorf("%v, want status %d", got, c.status)
					}
				})
			}
			all.Wait()
			// Not more than before: tests that ran earlier may have left memory that is used again.
			peak := s.Memory(t, "VmHWM")
			t.Logf("%d MiB resident before, %d at most", before>>20, peak>>20)
			if peak > 1500<<20 {
				t.Errorf("%d MiB are resident", peak>>20)
			}
		})
	}
}

// TestStalledUploads has one key begin uploads of a gigabyte in all and send nothing more. Another key's bodies are served.
func TestStalledUploads(t *testing.T) {
	s := start(t)
	ann, bob := s.as("ann"), s.as("bob")
	address := strings.TrimPrefix(s.URL, "http://")
	var all sync.WaitGroup
	for range 24 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "POST /api/v1/forward_backward HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Length: %d\r\n\r\n", ann.key, maxBody); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			_, _ = c.Write(make([]byte, 42<<20+650_000)) // 1023 MiB in all; an error says that the server does not want so much of one key
		})
	}
	all.Wait()
	for _, size := range []int{1_300_000, 2_000_000, 10_000_000} {
		bob.send(t, http.MethodPost, "/api/v1/telemetry", io.MultiReader(strings.NewReader(`{"events":[],"session_id":"`), strings.NewReader(strings.Repeat("x", size)), strings.NewReader(`"}`))).ok(t)
	}
}

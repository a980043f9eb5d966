package tenants

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// manySamples has a key wait for n long samples, and counts those that have ended, well or not.
func manySamples(ctx context.Context, c client, n, tokens int) (ended *atomic.Int64, stop func(), err error) {
	session, err := c.session(ctx, object{})
	if err != nil {
		return nil, nil, err
	}
	s, err := c.sampling(ctx, session, 0, "")
	if err != nil {
		return nil, nil, err
	}
	ended = &atomic.Int64{}
	var ids []string
	for i := range n {
		body := s.request(i, ramp(i%50, 8), tokens, 1)
		submitted, err := c.post(ctx, "asample", body)
		if err != nil {
			return nil, nil, err
		}
		id, _ := submitted["request_id"].(string)
		ids = append(ids, id)
	}
	ctx, cancel := context.WithCancel(ctx)
	var polls sync.WaitGroup
	for _, id := range ids[:min(n, 128)] { // the first ones: those that hold the places
		polls.Go(func() {
			_, _ = c.wait(ctx, id) // how it ends does not matter
			if ctx.Err() == nil {
				ended.Add(1)
			}
		})
	}
	return ended, func() {
		cancel()
		polls.Wait()
		// The session's end takes what is left of the samples away.
		_, _ = c.post(context.Background(), "sessions/"+session+"/finish", object{"reason": object{"type": "success"}})
	}, nil
}

// TestLongSamples: while a key's long samples take every place and more wait, the neighbour's short ones come through before the first of those has ended.
func TestLongSamples(t *testing.T) {
	ctx := t.Context()
	_, ann, bob := start(t)
	session := must(bob.session(ctx, object{}))(t)
	s := must(bob.sampling(ctx, session, 0, ""))(t)
	want := must(s.draw(ctx, 0, ramp(9, 8), 4, 0))(t)
	ended, stop, err := manySamples(ctx, ann, sized(2000, 400), 3500)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for i := range 10 {
		got := must(s.draw(ctx, i+1, ramp(9, 8), 4, 0))(t)
		if fmt.Sprint(got.tokens) != fmt.Sprint(want.tokens) {
			t.Errorf("sample %d is %v, alone %v", i, got.tokens, want.tokens)
		}
	}
	if n := ended.Load(); n > 0 {
		t.Errorf("ten samples of 4 tokens came through when %d of the other key's samples of 3,500 had ended", n)
	}
}

// raw opens n connections and has begin send on each what no client of HTTP would.
func (c client) raw(ctx context.Context, n int, begin func(connection net.Conn, host string) error) (stop func(), err error) {
	u, err := url.Parse(c.url)
	if err != nil {
		return nil, err
	}
	var open []net.Conn
	stop = func() {
		for _, connection := range open {
			connection.Close()
		}
	}
	for range n {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
		if err == nil {
			open = append(open, connection)
			err = begin(connection, u.Host)
		}
		if err != nil {
			stop()
			return nil, err
		}
	}
	return stop, nil
}

// stalledUploads begins n uploads that send size bytes and then nothing more.
func stalledUploads(ctx context.Context, c client, n, size int) (stop func(), err error) {
	chunk := []byte(strings.Repeat("x", 1<<20))
	return c.raw(ctx, n, func(connection net.Conn, host string) error {
		fmt.Fprintf(connection, "POST /api/v1/forward_backward HTTP/1.1\r\nHost: %s\r\nX-API-Key: %s\r\nContent-Type: application/x-protobuf\r\nContent-Length: %d\r\n\r\n", host, c.key, size+1)
		for sent := 0; sent < size; sent += len(chunk) {
			_ = connection.SetWriteDeadline(time.Now().Add(20 * time.Second))
			if n, _ := connection.Write(chunk[:min(len(chunk), size-sent)]); n == 0 {
				break // it was refused: as good
			}
		}
		return nil
	})
}

// TestStalledUploads: bodies that a key has begun and does not end leave room for the neighbour's.
func TestStalledUploads(t *testing.T) {
	ctx := t.Context()
	_, ann, bob := start(t)
	run := must(bob.train(ctx, 4))(t)
	stop, err := stalledUploads(ctx, ann, 24, 60<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, megabytes := range []int{1, 2, 8} {
		// A body of that size which is refused for what it says, not for want of room.
		body := append(passBytes(run.id, 1, []int32{70}, []int64{71}), make([]byte, megabytes<<20)...)
		a := must(bob.do(ctx, http.MethodPost, "/api/v1/forward_backward", body))(t)
		if a.status >= 500 || a.status == http.StatusTooManyRequests || a.status == http.StatusRequestTimeout {
			t.Errorf("a body of %d MiB beside stalled ones: %s", megabytes, a)
		}
	}
	if err := run.step(ctx, ramp(1, 500), make([]int64, 500), 1e-3); err != nil {
		t.Errorf("a step beside stalled uploads: %v", err)
	}
}

// TestSessionMetadata: sessions with much metadata, and lists of them, leave the server's memory as it is.
func TestSessionMetadata(t *testing.T) {
	ctx := t.Context()
	server, ann, bob := start(t)
	server.ours(t)
	run := must(bob.train(ctx, 4))(t)
	before := server.ForgetPeak(t)
	n := sized(1500, 300)
	size := 250 << 10
	made := 0
	for range n {
		if _, err := ann.session(ctx, object{"notes": strings.Repeat("m", size)}); err != nil {
			t.Logf("after %d sessions: %v", made, err)
			break
		}
		made++
	}
	var lists sync.WaitGroup
	for range 8 {
		lists.Go(func() {
			for _, path := range []string{"sessions?limit=1", "training_runs?limit=1", "sessions?limit=1&offset=5"} {
				if a, err := ann.do(ctx, http.MethodGet, "/api/v1/"+path, nil); err != nil || a.status >= 500 {
					t.Errorf("%s: %v %v", path, a, err)
				}
			}
		})
	}
	for range 5 {
		if err := run.step(ctx, []int32{70, 71}, []int64{71, 72}, 1e-3); err != nil {
			t.Errorf("the neighbour's step: %v", err)
		}
	}
	lists.Wait()
	grown := server.Memory(t, "VmHWM") - before
	t.Logf("%d sessions of %d KiB: the gateway's memory had grown by up to %d MiB", made, size>>10, grown>>20)
	if limit := int64(256 << 20); grown > limit {
		t.Errorf("the gateway's memory grew by %d MiB, more than %d", grown>>20, limit>>20)
	}
}

// TestCreations: models that a key has made in numbers do not hold the neighbour up, and what they took is given back with their session.
func TestCreations(t *testing.T) {
	ctx := t.Context()
	server, ann, bob := start(t)
	run := must(bob.train(ctx, 4))(t)
	session := must(ann.session(ctx, object{}))(t)
	n := sized(300, 60)
	var done atomic.Int64
	var creations sync.WaitGroup
	var disk int64
	if server.own() {
		disk = server.Stored(t)
	}
	for i := range n {
		submitted, err := ann.post(ctx, "create_model", creation(session, i, 64))
		if err != nil {
			t.Logf("creation %d: %v", i, err)
			break
		}
		id, _ := submitted["request_id"].(string)
		creations.Go(func() {
			if _, err := ann.wait(ctx, id); err != nil {
				t.Logf("creation %d: %v", i, err)
			}
			done.Add(1)
		})
	}
	for range 5 {
		if err := run.step(ctx, []int32{70, 71}, []int64{71, 72}, 1e-3); err != nil {
			t.Errorf("the neighbour's step: %v", err)
		}
	}
	t.Logf("5 steps of the neighbour's while %d of %d models were made", done.Load(), n)
	creations.Wait()
	must(ann.do(ctx, http.MethodPost, "/api/v1/sessions/"+session+"/finish", object{"reason": object{"type": "success"}}))(t)
	if !server.own() {
		return
	}
	left := until(30*time.Second, func() int64 { return server.Stored(t) - disk }, func(left int64) bool { return left < 64<<20 })
	if left >= 64<<20 {
		t.Errorf("%d MiB are on the disk 30 s after the session's end", left>>20)
	}
}

// settled is what the data directory takes when what earlier tests wrote has gone from the log to the database, or after a while in any case.
func settled(t *testing.T, server *tenantsServer) int64 {
	t.Helper()
	stored, same := int64(0), 0
	return until(time.Minute, func() int64 { return server.Stored(t) }, func(now int64) bool {
		if same++; now != stored {
			stored, same = now, 0
		}
		return same == 25
	})
}

// TestManySequences: a small request for many sequences writes in proportion to itself.
func TestManySequences(t *testing.T) {
	ctx := t.Context()
	server, ann, _ := start(t)
	server.ours(t)
	session := must(ann.session(ctx, object{}))(t)
	s := must(ann.sampling(ctx, session, 0, ""))(t)
	before := settled(t, server)
	body := s.request(0, ramp(3, 3000), 1, 1)
	body["num_samples"] = 1024
	if _, err := s.finish(ctx, "asample", body); err != nil {
		t.Logf("the request: %v", err)
	}
	if written := server.Stored(t) - before; written > 4<<20 {
		t.Errorf("a request of some 16 KB had %d MiB written", written>>20)
	}
}

// TestLargeChats: chats that no model's context could hold are refused without much memory.
func TestLargeChats(t *testing.T) {
	ctx := t.Context()
	server, ann, bob := start(t)
	server.chats(t)
	var before int64
	if server.own() {
		before = server.ForgetPeak(t)
	}
	var chats sync.WaitGroup
	for range 8 {
		chats.Go(func() {
			text := io.MultiReader(strings.NewReader(`{"model":"`+*flagModel+`","max_tokens":1,"messages":[{"role":"user","content":"`), io.LimitReader(letters{}, 60<<20), strings.NewReader(`"}]}`))
			a, err := ann.do(ctx, http.MethodPost, "/v1/chat/completions", text)
			// The server may end the connection before it has read all of a body that it refuses.
			if err == nil && (a.status < 400 || a.status > 499) {
				t.Errorf("a chat of 60 MB: %s", a)
			}
		})
	}
	a, err := bob.do(ctx, http.MethodPost, "/v1/chat/completions", object{"model": *flagModel, "max_tokens": 1, "messages": []any{object{"role": "user", "content": "hi"}}})
	if err != nil || a.status != http.StatusOK {
		t.Errorf("the neighbour's chat: %v %v", a, err)
	}
	chats.Wait()
	if !server.own() {
		return
	}
	if grown := server.Memory(t, "VmHWM") - before; grown > 512<<20 {
		t.Errorf("eight chats of 60 MB took %d MiB", grown>>20)
	}
}

// letters is endless text.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = "many words "[i%11]
	}
	return len(p), nil
}

// TestConnections: connections that only hold descriptors, and need no key, leave others their requests, the server its files and everybody /healthz.
func TestConnections(t *testing.T) {
	ctx := t.Context()
	server, _, bob := alone(t, "connections", 400, nil)
	run := must(bob.train(ctx, 4))(t)
	u, err := url.Parse(server.url)
	if err != nil {
		t.Fatal(err)
	}
	var open []net.Conn
	defer func() {
		for _, connection := range open {
			connection.Close()
		}
	}()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 77)}, Timeout: 2 * time.Second}
	for range 800 {
		connection, err := dialer.DialContext(ctx, "tcp", u.Host)
		if err != nil {
			break
		}
		open = append(open, connection)
		fmt.Fprintf(connection, "GET /healthz HTTP/1.1\r\n") // and never the rest
	}
	// The idle connections that clients had before may be ended to make room.
	transport.CloseIdleConnections()
	for range 5 {
		answer, err := http.Get(server.url + "/healthz")
		if err != nil {
			t.Fatalf("/healthz beside %d connections: %v", len(open), err)
		}
		answer.Body.Close()
	}
	if err := run.step(ctx, []int32{70, 71}, []int64{71, 72}, 1e-3); err != nil {
		t.Errorf("the neighbour's step beside %d connections: %v", len(open), err)
	}
	if _, err := run.save(ctx, "beside"); err != nil {
		t.Errorf("the neighbour's save beside %d connections: %v", len(open), err)
	}
	if lines := strings.Count(server.Log(), "connections"); lines == 0 || lines > 20 {
		t.Errorf("the log speaks of connections in %d lines", lines)
	}
}

// slowReaders opens n streams of long answers that nobody reads.
func slowReaders(ctx context.Context, c client, n int) (stop func(), err error) {
	body := fmt.Sprintf(`{"model":%q,"stream":true,"temperature":1,"logprobs":true,"top_logprobs":20,"max_tokens":3500,"ignore_eos":true,"messages":[{"role":"user","content":"tell"}]}`, *flagModel)
	return c.raw(ctx, n, func(connection net.Conn, host string) error {
		if tcp, ok := connection.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(4 << 10)
		}
		fmt.Fprintf(connection, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nX-API-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", host, c.key, len(body), body)
		_ = connection.SetReadDeadline(time.Now().Add(answerWithin))
		if _, err := io.ReadFull(connection, make([]byte, 15)); err != nil && !errors.Is(err, io.EOF) { // it has begun
			return err
		}
		return nil
	})
}

// TestSlowReaders: streams that nobody reads hold no place that the neighbour needs.
func TestSlowReaders(t *testing.T) {
	ctx := t.Context()
	server, ann, bob := start(t)
	server.chats(t)
	stop, err := slowReaders(ctx, ann, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for range 3 {
		a, err := bob.do(ctx, http.MethodPost, "/v1/chat/completions", object{"model": *flagModel, "max_tokens": 4, "messages": []any{object{"role": "user", "content": "hi"}}})
		if err != nil || a.status != http.StatusOK {
			t.Errorf("the neighbour's chat: %v %v", a, err)
		}
	}
}

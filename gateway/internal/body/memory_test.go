package body

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

const mib = 1 << 20

// small is a memory for tests, in which nobody waits.
func small(total int64) *Memory {
	m := newMemory(total)
	m.patience = 0
	return m
}

func statusOf(err error) int {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.Status
	}
	return 0
}

func take(t *testing.T, m *Memory, owner string, n int64) *Claim {
	t.Helper()
	c := m.claim(owner)
	if err := c.Take(n); err != nil {
		t.Fatalf("%s is refused %d MiB: %v", owner, n/mib, err)
	}
	return c
}

// One key alone has half, further keys 1/(n+1), and who has less than that always finds room.
func TestShares(t *testing.T) {
	m := small(120 * mib)
	take(t, m, "ann", 60*mib)
	for _, c := range []struct {
		owner  string
		mib    int64
		status int
	}{
		{"ann", 1, 503},
		{"bob", 40, 0},
		{"bob", 1, 503},
		{"ann", 1, 503},
		{"cat", 20, 0}, // now all is taken
		{"cat", 1, 503},
		{"ann", 61, 413}, // alone nobody could have it
	} {
		claim := m.claim(c.owner)
		if err := claim.Take(c.mib * mib); statusOf(err) != c.status {
			t.Errorf("%s asks for %d MiB: %v, want status %d", c.owner, c.mib, err, c.status)
		}
	}
	if m.taken != 120*mib {
		t.Errorf("%d MiB are taken", m.taken/mib)
	}
}

// tap is a connection of a request; closing it has its request give up what it has, as reading from a closed connection does.
type tap struct {
	closed  atomic.Bool
	onClose func()
}

func (c *tap) Close() error {
	c.closed.Store(true)
	if c.onClose != nil {
		c.onClose()
	}
	return nil
}

// arriving is a claim whose body is on its way.
func arriving(t *testing.T, m *Memory, owner string, n int64, c *tap) *Claim {
	t.Helper()
	claim := m.claim(owner)
	claim.move(httptest.NewRequestWithContext(WithConnection(t.Context(), c), http.MethodPost, "/", nil))
	if err := claim.Take(n); err != nil {
		t.Fatal(err)
	}
	return claim
}

// If all is taken, the slowest body of the key that has most makes room for a key that has less, and no more bodies than needed.
func TestRoomIsMade(t *testing.T) {
	m := small(120 * mib)
	m.patience = time.Minute // a test that hangs here says that no room was made
	var slow, quick, other tap
	quickClaim := arriving(t, m, "ann", 40*mib, &quick)
	slowClaim := arriving(t, m, "ann", 20*mib, &slow)
	slowClaim.began = quickClaim.began.Add(-time.Hour)
	arriving(t, m, "bob", 40*mib, &other)
	take(t, m, "cat", 20*mib)
	slow.onClose = slowClaim.Release
	take(t, m, "dan", 15*mib)
	if !slow.closed.Load() || quick.closed.Load() || other.closed.Load() {
		t.Errorf("closed: the slow body of the largest %v, its other one %v, another's %v", slow.closed.Load(), quick.closed.Load(), other.closed.Load())
	}
	if m.taken != 115*mib || m.ending != 0 {
		t.Errorf("%d MiB are taken, %d of them ending", m.taken/mib, m.ending/mib)
	}
	if err := slowClaim.Take(1); statusOf(err) != 503 {
		t.Errorf("who was cut goes on: %v", err)
	}
}

// What has arrived and is worked on is not taken away.
func TestNoRoomIsMadeOfWhatIsSettled(t *testing.T) {
	m := small(120 * mib)
	var c tap
	arriving(t, m, "ann", 60*mib, &c).settle()
	take(t, m, "bob", 40*mib)
	take(t, m, "cat", 20*mib)
	if err := m.claim("dan").Take(mib); statusOf(err) != 503 || c.closed.Load() {
		t.Errorf("%v, closed %v", err, c.closed.Load())
	}
}

// Who finds no memory waits until others give some back.
func TestWaiting(t *testing.T) {
	m := small(120 * mib)
	m.patience = time.Minute // as above
	first := take(t, m, "ann", 60*mib)
	done := make(chan error)
	go func() { done <- m.claim("ann").Take(30 * mib) }()
	first.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if m.taken != 30*mib {
		t.Errorf("%d MiB are taken", m.taken/mib)
	}
}

// read is a body that is read from a connection.
func read(m *Memory, owner, encoding string, length int64, body io.Reader) (*Claim, []byte, error) {
	r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(body))
	r.ContentLength = length
	r.Header.Set("Content-Encoding", encoding)
	c := m.claim(owner)
	b, err := c.Read(r, 64*mib)
	return c, b, err
}

// probe calls a function when it is read.
type probe func()

func (p probe) Read([]byte) (int, error) {
	p()
	return 0, io.EOF
}

// Memory is taken for what has come, not for what was announced, and not when little has.
func TestOnlyWhatArrivedCounts(t *testing.T) {
	half := zstandard(t, bytes.Repeat([]byte("hello"), mib))
	for _, c := range []struct {
		name, encoding  string
		announced       int64
		body            []byte
		least, most     int64 // that is taken when the client stops
		leastAt, mostAt int64 // and when all was read, behind which the body ends
	}{
		{"nothing comes", "", 64 * mib, nil, 0, smallBytes, 0, smallBytes},
		{"a tenth comes", "", 64 * mib, make([]byte, 6*mib), 6 * mib, 12 * mib, 6 * mib, 12 * mib},
		{"all comes", "", 6 * mib, make([]byte, 6*mib), 6 * mib, 6*mib + 1, 6 * mib, 6*mib + 1},
		{"in chunks", "", -1, make([]byte, 6*mib), 6 * mib, 12 * mib, 6 * mib, 12 * mib},
		{"a window is announced", "zstd", -1, half[:18], 0, 9 * mib, 0, 9 * mib},
		{"compressed", "zstd", -1, half, 0, 20 * mib, 5 * mib, 20 * mib},
		{"little", "", 1000, make([]byte, 1000), 0, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := small(1024 * mib)
			during := int64(-1)
			claim, _, err := read(m, "ann", c.encoding, c.announced, io.MultiReader(bytes.NewReader(c.body), probe(func() { during = m.taken })))
			if whole := c.announced < 0 || c.announced == int64(len(c.body)); err != nil && whole && c.encoding == "" {
				t.Fatal(err)
			}
			if during >= 0 && (during < c.least || during > c.most) {
				t.Errorf("%d bytes are taken while more is waited for, want %d to %d", during, c.least, c.most)
			}
			if m.taken < c.leastAt || m.taken > c.mostAt {
				t.Errorf("%d bytes are taken, want %d to %d", m.taken, c.leastAt, c.mostAt)
			}
			claim.Release()
			if m.taken != 0 || len(m.owners) != 0 {
				t.Errorf("%d bytes of %d keys stay taken", m.taken, len(m.owners))
			}
		})
	}
}

// What cannot be had is not read into memory, but to its end, and counts for nothing.
func TestRefusedBodies(t *testing.T) {
	for _, c := range []struct {
		name   string
		others int64
		length int64
		status int
	}{
		{"too long", 0, 65 * mib, 413},
		{"no memory", 30 * mib, 20 * mib, 503},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := small(64 * mib)
			if c.others > 0 {
				take(t, m, "ann", c.others)
			}
			sent := bytes.NewReader(make([]byte, min(c.length, 64*mib)))
			_, _, err := read(m, "ann", "", c.length, sent)
			if statusOf(err) != c.status || sent.Len() > 0 || m.taken != c.others {
				t.Errorf("%v; %d bytes were not read, %d are taken", err, sent.Len(), m.taken)
			}
		})
	}
}

// The first frame's window bounds those of all frames, so that none is taken uncounted.
func TestWindowsOfLaterFrames(t *testing.T) {
	frame := func(window int, b []byte) []byte {
		var out bytes.Buffer
		w, err := zstd.NewWriter(&out, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
		w.Flush()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	text := bytes.Repeat([]byte("hello"), mib)
	for _, c := range []struct {
		name          string
		first, second int
		status        int
	}{
		{"as large", 4 * mib, 4 * mib, 0},
		{"smaller", 4 * mib, mib, 0},
		{"both small", 64 << 10, mib, 0},
		{"larger", mib, 8 * mib, 413},
	} {
		body := append(frame(c.first, text), frame(c.second, text)...)
		_, b, err := read(small(1024*mib), "ann", "zstd", int64(len(body)), bytes.NewReader(body))
		if statusOf(err) != c.status || c.status == 0 && len(b) != 2*len(text) {
			t.Errorf("%s: %d bytes, %v; want status %d", c.name, len(b), err, c.status)
		}
	}
}

// A large answer takes memory until it is sent, in the place of what its request had.
func TestAnswersCount(t *testing.T) {
	m := small(64 * mib)
	c := take(t, m, "ann", 20*mib)
	r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
	w := &watched{ResponseRecorder: httptest.NewRecorder(), seen: func() int64 { return m.taken }}
	if err := c.Send(w, r, http.StatusOK, "text/plain", make([]byte, 30*mib)); err != nil {
		t.Fatal(err)
	}
	if w.during != 30*mib {
		t.Errorf("%d MiB are taken while the answer is sent", w.during/mib)
	}
	c.Release()
	if err := take(t, m, "ann", 30*mib).Send(w, r, http.StatusOK, "text/plain", make([]byte, 33*mib)); statusOf(err) != 413 {
		t.Errorf("too large an answer: %v", err)
	}
	if m.taken != 0 {
		t.Errorf("%d bytes stay taken", m.taken)
	}
}

type watched struct {
	*httptest.ResponseRecorder
	seen   func() int64
	during int64
}

func (w *watched) Write(b []byte) (int, error) {
	w.during = w.seen()
	return w.ResponseRecorder.Write(b)
}

// TestKeep: an answer takes the place of what was claimed for it, and only more is waited for.
func TestKeep(t *testing.T) {
	m := small(1000)
	c := m.claim("ann")
	for _, step := range []struct{ take, keep, held int64 }{{100, 40, 40}, {0, 40, 40}, {0, 60, 60}, {20, 0, 0}, {0, 50, 50}} {
		if err := errors.Join(c.Take(step.take), c.keep(step.keep)); err != nil {
			t.Fatal(err)
		}
		if c.bytes != step.held || m.taken != step.held || step.held > 0 && m.owners["ann"].bytes != step.held {
			t.Errorf("%+v: it has %d, all have %d", step, c.bytes, m.taken)
		}
	}
	if err := c.keep(600); err == nil || c.bytes != 0 || len(m.owners) != 0 {
		t.Errorf("more than one may have: %v, and it has %d", err, c.bytes)
	}
}

func TestCountValues(t *testing.T) {
	for text, want := range map[string]int{
		``: 0, `1`: 0, `[1,2,3]`: 3, `{"a":[1,2],"b":{}}`: 7, `"a,b:c[d{e"`: 0, `["a\",\"b",2]`: 2, `["\\",",",2]`: 3, `{"":"","x,":1}`: 4, `"no end, no`: 0, `"\`: 0,
	} {
		if got := countValues([]byte(text)); got != want {
			t.Errorf("%s has %d, want %d", text, got, want)
		}
	}
}

package ordeal

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/bucket"
	"github.com/tinsmith/tinsmith/gateway/internal/bucket/buckettest"
	"github.com/tinsmith/tinsmith/plugins/plugintest/lan"
	"github.com/tinsmith/tinsmith/plugins/plugintest/link"
)

// couple is two gateways with one database and one folder of files, and nothing else in common, behind a balancer that sends clients to the one that says it is ready.
type couple struct {
	testing.TB
	gateways [2]*server
	files    string
	bucket   *buckettest.Server // has the files, if it is not nil
	url      string             // of the balancer

	mu       sync.Mutex
	active   int // -1: none
	conns    map[net.Conn]int
	listener net.Listener
	ended    sync.WaitGroup
	stop     chan struct{}
}

// newCouple starts both; the first one serves. Each is started again whenever it is gone, and killed at its points.
func newCouple(t testing.TB, backend, more settings, kill [2][]string) *couple {
	t.Helper()
	dir := t.TempDir()
	file := schema(t, dir)
	return newCoupleOf(t, backend, more, kill, dir, [2]string{file, file}, nil, [2]*lan.Machine{})
}

// newCoupleOf is newCouple with a database, to which a file names the way of each gateway, files in a folder or, if it is not nil, in a bucket,
// and a machine for each gateway; nil is this one.
func newCoupleOf(
	t testing.TB, backend, more settings, kill [2][]string, dir string, database [2]string, inBucket *buckettest.Server, machines [2]*lan.Machine,
) *couple {
	t.Helper()
	c := &couple{TB: t, files: filepath.Join(dir, "files"), active: -1, conns: map[net.Conn]int{}, stop: make(chan struct{})}
	if err := os.Mkdir(c.files, 0o700); err != nil {
		t.Fatal(err)
	}
	files := settings{"dir": c.files}
	if c.bucket = inBucket; inBucket != nil {
		files = settings{"s3": settings{"endpoint": inBucket.URL, "bucket": inBucket.Bucket, "prefix": inBucket.Prefix, "key_file": inBucket.KeyFile(t, dir), "cache_mib": 1}}
	}
	const lease = "3s" // a machine under load must not take it from the gateway that works
	var err error
	if c.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	c.url = "http://" + c.listener.Addr().String()
	for i := range c.gateways {
		shared := settings{"store": settings{"driver": "postgres", "url_file": database[i], "lease": lease}, "files": files}
		for k, v := range more {
			shared[k] = v
		}
		s := newServerOn(t, machines[i], backend, shared)
		s.kill = kill[i]
		s.start()
		s.revive()
		if i == 0 {
			s.ready()
		} else {
			s.await("standby", func(h health) bool { return h.Status == "standby" || len(kill[0]) > 0 })
		}
		c.gateways[i] = s
	}
	c.ended.Go(c.follow)
	c.ended.Go(c.accept)
	t.Cleanup(func() {
		close(c.stop)
		c.listener.Close()
		c.turn(-1)
		c.ended.Wait()
	})
	return c
}

// follow looks for the gateway that is ready.
func (c *couple) follow() {
	client := http.Client{Timeout: 500 * time.Millisecond}
	for {
		select {
		case <-c.stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
		active := -1
		for i, s := range c.gateways {
			answer, err := client.Get(s.url + "/health")
			if err != nil {
				continue
			}
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				active = i
			}
		}
		c.turn(active)
	}
}

// turn closes the connections to a gateway that is not ready.
func (c *couple) turn(active int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active = active
	for conn, to := range c.conns {
		if to != active {
			conn.Close()
			delete(c.conns, conn)
		}
	}
}

func (c *couple) accept() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.mu.Lock()
		to := c.active
		if to >= 0 {
			c.conns[client] = to
		}
		c.mu.Unlock()
		if to < 0 {
			client.Close()
			continue
		}
		server, err := net.DialTimeout("tcp", strings.TrimPrefix(c.gateways[to].url, "http://"), time.Second)
		if err != nil {
			client.Close()
			continue
		}
		c.ended.Go(func() { _, _ = io.Copy(server, client); server.Close() })
		c.ended.Go(func() { _, _ = io.Copy(client, server); client.Close(); server.Close() })
	}
}

// end ends both.
func (c *couple) end() {
	for _, s := range c.gateways {
		s.end()
	}
}

// script is script by way of the balancer.
func (c *couple) script() findings {
	c.Helper()
	return scriptOf(newCaller(c, c.url), func() string {
		if c.bucket == nil {
			return c.files
		}
		b, err := bucket.Open(c.Context(), bucket.Options{
			Endpoint: c.bucket.URL, Bucket: c.bucket.Bucket, Prefix: c.bucket.Prefix, AccessKey: c.bucket.AccessKey, SecretKey: c.bucket.SecretKey, Dir: c.files, CacheBytes: 1 << 30,
		})
		var dirs []string
		if err == nil {
			defer b.Close()
			dirs, err = b.List(c.Context())
		}
		for _, dir := range dirs { // others may go meanwhile
			if err == nil && strings.HasPrefix(dir, "checkpoints"+string(filepath.Separator)) {
				_, err = b.Fetch(c.Context(), dir)
			}
		}
		if err != nil {
			c.Fatal(err)
		}
		return c.files
	})
}

// serving is the gateway that is ready.
func (c *couple) serving() *server {
	c.Helper()
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		c.mu.Lock()
		active := c.active
		c.mu.Unlock()
		if active >= 0 {
			return c.gateways[active]
		}
	}
	c.Fatalf("no gateway is ready: %+v %+v", c.gateways[0].healthz(), c.gateways[1].healthz())
	return nil
}

func recoveryOften() settings {
	return settings{"recovery": settings{"snapshot_operations": *pointEvery, "disk_share": 1.0}}
}

// TestStandby kills the gateway that serves, before and after writes and calls, and the one that has taken over, and so on: clients only wait, and all that they get and all that is saved is what an undisturbed server gives. Others
// keep the gateways busy meanwhile. The backend is that of -kills-plugin.
func TestStandby(t *testing.T) {
	rounds := 2
	if os.Getenv("E2E_LEVEL") == "all" {
		rounds = 20
	}
	schema(t, t.TempDir()) // skips
	backend := placement(t, *killPlugin)
	want, writes, calls, _ := live(t, victim{backend: backend})
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("%d writes, %d calls; -kills-seed %d", writes, calls, seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for round := range rounds {
		var kill [2][]string
		for i := range kill {
			for range 2 {
				p := point{"write", []string{"before", "after"}[random.IntN(2)], 1 + random.IntN(writes/2), []string{"gateway", "both"}[random.IntN(2)]}
				if random.IntN(2) == 0 {
					p.event, p.n = "call", 1+random.IntN(calls/2)
				}
				kill[i] = append(kill[i], p.String())
			}
		}
		t.Run(fmt.Sprint(round, kill), func(t *testing.T) {
			var files *buckettest.Server
			if round%2 == 1 {
				files = buckettest.New(t)
			}
			dir := t.TempDir()
			file := schema(t, dir)
			c := newCoupleOf(t, backend, recoveryOften(), kill, dir, [2]string{file, file}, files, [2]*lan.Machine{})
			var done atomic.Bool
			var neighbours sync.WaitGroup
			for i := range 3 {
				neighbours.Go(func() {
					for n := i; !done.Load(); n += 3 {
						if err := life(newCaller(t, c.url), n); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			got := c.script()
			done.Store(true)
			neighbours.Wait()
			c.end()
			compare(t, got, want)
			t.Logf("%d and %d starts", c.gateways[0].starts, c.gateways[1].starts)
			if c.gateways[0].starts+c.gateways[1].starts < 3 {
				t.Error("no gateway was killed")
			}
		})
	}
}

// TestStandbyAfterAPause stops the gateway that serves for longer than its lease, lets the other take over, and has the first go on: it writes nothing any more and ends by itself. A second gateway takes over in an orderly way, too.
// Backends are each gateway's own, or one on another machine, which goes from one gateway to the other.
func TestStandbyAfterAPause(t *testing.T) {
	schema(t, t.TempDir()) // skips
	want, _, _, _ := live(t, victim{backend: settings{"plugin": "fake"}})
	t.Run("backends here", func(t *testing.T) { pause(t, settings{"plugin": "fake"}, want) })
	t.Run("a backend elsewhere", func(t *testing.T) {
		p := newPlatform(t, "fake")
		pause(t, p.section(p.address, settings{"plugin": "fake"}), want)
	})
}

// pause is TestStandbyAfterAPause with one way to have backends.
func pause(t *testing.T, backend settings, want findings) {
	c := newCouple(t, backend, recoveryOften(), [2][]string{})
	var done atomic.Bool
	var disturbing sync.WaitGroup
	paused := 0
	disturbing.Go(func() {
		for i := 0; !done.Load() && i < 3; i++ {
			time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
			s := c.serving()
			process, ended := s.running()
			if i == 2 { // asked to end it gives the lease up
				_ = process.Signal(syscall.SIGTERM)
				<-ended
				continue
			}
			begun := time.Now()
			_ = process.Signal(syscall.SIGSTOP)
			other := s
			for deadline := time.Now().Add(within); other == s && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				other = c.serving()
			}
			t.Logf("another gateway is ready %v after a pause began", time.Since(begun).Round(10*time.Millisecond))
			time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond) // it works
			_ = process.Signal(syscall.SIGCONT)
			select {
			case <-ended:
				paused++
			case <-time.After(within):
				t.Error("a gateway that has lost its lease goes on")
			}
		}
	})
	got := c.script()
	done.Store(true)
	disturbing.Wait()
	c.end()
	compare(t, got, want)
	if paused == 0 {
		t.Error("no gateway was stopped")
	}
	if text := c.gateways[0].log() + c.gateways[1].log(); !strings.Contains(text, "this gateway ends") {
		t.Error("the log of the gateways does not say that one was fenced off")
	}
}

// BenchmarkTakeover is the time from a kill of the gateway that serves, or from a stop that leaves its connections open, to the first result of an operation that a client gives to the other one.
func BenchmarkTakeover(b *testing.B) {
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		b.Run(name, func(b *testing.B) {
			c := newCouple(b, settings{"plugin": "fake"}, settings{}, [2][]string{})
			caller := newCaller(b, c.url)
			r := caller.create(caller.session(), 0, 4)
			r.pass(0, 1, 8).must()
			i := 0
			for b.Loop() {
				i++
				process, _ := c.serving().running()
				_ = process.Signal(signal)
				r.pass(i, 1, 8).must()
				b.StopTimer()
				_ = process.Signal(syscall.SIGCONT)
				for _, s := range c.gateways {
					s.await("up", func(h health) bool {
						return h.Status == "ok" || h.Status == "standby" && len(h.Models) > 0 && h.Models[0].State == "ready"
					})
				}
				b.StartTimer()
			}
			c.end()
		})
	}
}

// coupleByLink are two gateways of which the first one reaches the database by a link, or both do. It gives the database's address, too.
func coupleByLink(t *testing.T, backend settings, firstOnly bool) (c *couple, way *link.Link, database string) {
	t.Helper()
	dir := t.TempDir()
	direct := schema(t, dir)
	b, err := os.ReadFile(direct)
	if err != nil {
		t.Fatal(err)
	}
	through, err := url.Parse(string(b))
	if err != nil {
		t.Fatal(err)
	}
	way = link.New(t, through.Host)
	through.Host = way.Address()
	linked := filepath.Join(dir, "linked")
	if err := os.WriteFile(linked, []byte(through.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	files := [2]string{linked, linked}
	if firstOnly {
		files[1] = direct
	}
	return newCoupleOf(t, backend, recoveryOften(), [2][]string{}, dir, files, nil, [2]*lan.Machine{}), way, string(b)
}

// TestPartition cuts the gateway that serves off the database, and from it alone: the other one takes over, and the first one, which has been up all the time, ends itself when it reaches the database again.
func TestPartition(t *testing.T) {
	schema(t, t.TempDir()) // skips
	backend := settings{"plugin": "fake"}
	want, _, _, _ := live(t, victim{backend: backend})
	c, way, _ := coupleByLink(t, backend, true)
	first := c.gateways[0]
	_, ended := first.running()
	var disturbing sync.WaitGroup
	disturbing.Go(func() {
		time.Sleep(time.Duration(50+rand.IntN(200)) * time.Millisecond)
		way.Hold(link.Back, true)
		c.gateways[1].await("serving", func(h health) bool { return h.Status == "ok" })
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond) // it works
		way.Hold(link.Back, false)
		select {
		case <-ended:
		case <-time.After(within):
			t.Error("a gateway that another one has taken over from goes on")
		}
	})
	got := c.script()
	disturbing.Wait()
	first.await("standby", func(h health) bool { return h.Status == "standby" })
	c.end()
	compare(t, got, want)
}

// TestDatabaseAway takes the database away from a gateway in several ways while a client works: new work is refused with 503 and Retry-After, what was begun waits, and everything goes on by itself, also with the gateway that served
// before, although another one waits. All that comes out is what an undisturbed server gives.
func TestDatabaseAway(t *testing.T) {
	backend := settings{"plugin": "fake"}
	want, _, _, _ := live(t, victim{backend: backend})
	c, way, database := coupleByLink(t, backend, false)
	first := c.serving()
	var disturbing sync.WaitGroup
	disturbing.Go(func() {
		client := http.Client{Timeout: 10 * time.Second}
		for i := range 3 {
			time.Sleep(time.Duration(100+rand.IntN(200)) * time.Millisecond)
			switch i {
			case 0: // as when the server is started again
				way.Cut()
			case 1:
				db, err := sql.Open("pgx", database)
				if err == nil {
					_, err = db.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'tinsmith %'")
					err = errors.Join(err, db.Close())
				}
				if err != nil {
					t.Error(err)
				}
			case 2: // nothing answers
				way.Hold(link.Back, true)
				refused := false
				for deadline := time.Now().Add(within); !refused && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
					answer, err := post(&client, first.url+"/api/v1/create_session", "application/json", []byte(`{"tags": [], "user_metadata": {}, "sdk_version": "0.38.0", "type": "create_session"}`))
					if err == nil {
						answer.Body.Close()
						refused = answer.StatusCode == http.StatusServiceUnavailable && answer.Header.Get("Retry-After") != ""
					}
				}
				if !refused {
					t.Error("new work was not refused while the database was away")
				}
				time.Sleep(time.Second)
				way.Hold(link.Back, false)
			}
		}
	})
	got := c.script()
	disturbing.Wait()
	r := newCaller(t, c.url)
	if out, err := r.post("/create_session", object{"tags": []string{}, "user_metadata": object{}, "sdk_version": "0.38.0", "type": "create_session"}); err != nil {
		t.Errorf("it does not go on: %v, %v", out, err)
	}
	c.end()
	compare(t, got, want)
	if n := c.gateways[0].starts + c.gateways[1].starts; n != 2 {
		t.Errorf("%d starts of two gateways", n)
	}
}

// TestGoingOver moves a run from a gateway alone to one that shares a folder, from there to one with a bucket, and back, by backups of servers that run and that do not: it goes on with the same bits. A folder that is not the
// database's is refused.
func TestGoingOver(t *testing.T) {
	database := func() settings {
		return settings{"driver": "postgres", "url_file": schema(t, t.TempDir()), "lease": "500ms"}
	}
	shared := settings{"store": database(), "files": settings{"dir": t.TempDir()}}
	inBucket := buckettest.New(t)
	bucketed := settings{"store": database(), "files": settings{"s3": settings{
		"endpoint": inBucket.URL, "bucket": inBucket.Bucket, "prefix": inBucket.Prefix, "key_file": inBucket.KeyFile(t, t.TempDir()), "cache_mib": 1,
	}}}
	backend := settings{"plugin": "fake"}
	s := newServer(t, backend, recoveryOften())
	s.start()
	s.ready()
	c := newCaller(t, s.url)
	session := c.session()
	r := c.create(session, 0, 4)
	first, _ := r.save("first").must()
	for i := range 6 {
		lesson(r, i).must()
	}
	moved, at := *r, s
	for n, to := range []settings{shared, bucketed, nil} {
		if n == 1 {
			at.end() // a server that does not run is copied as well
		}
		backup := filepath.Join(t.TempDir(), "backup")
		if out, errs, err := at.command("backup", backup); err != nil {
			t.Fatalf("backup %d: %v\n%s%s", n, err, out, errs)
		}
		if n != 1 {
			at.end()
		}
		more := recoveryOften()
		for k, v := range to {
			more[k] = v
		}
		next := newServer(t, backend, more)
		if out, errs, err := next.command("restore", backup); err != nil {
			t.Fatalf("restore %d: %v\n%s%s", n, err, out, errs)
		}
		next.start()
		next.ready()
		moved.caller = newCaller(t, next.url)
		for i := range 3 {
			lesson(&moved, 6+3*n+i).must()
		}
		moved.resume(session, 1+n, first["path"].(string)).pass(0, 1, 8).must()
		at = next
	}
	moved.save("end").must()
	s.ok(os.Remove(filepath.Join(s.dir, "data", "address")))
	s.url = ""
	s.start()
	s.ready()
	r.caller = newCaller(t, s.url)
	for i := range 9 {
		lesson(r, 6+i).must()
	}
	r.save("end").must()
	pattern := filepath.Join("data", "checkpoints", "*", "weights", "end~*")
	if want, got := sums(t, filepath.Join(s.dir, pattern)), sums(t, filepath.Join(at.dir, pattern)); got != want {
		t.Errorf("moved three times the run ends with %s, else with %s", got, want)
	}
	other := newServer(t, backend, settings{"store": shared["store"], "files": settings{"dir": t.TempDir()}})
	if said := other.refusalOrStart(); !strings.Contains(said, "is it mounted?") {
		t.Errorf("with an empty folder in place of the database's it says %q", lastOf(said, 2000))
	}
	alone := newServer(t, backend, settings{"store": settings{"driver": "postgres", "url_file": shared["store"].(settings)["url_file"]}})
	if said := alone.refusalOrStart(); !strings.Contains(said, "gateways share") {
		t.Errorf("without files it says %q", lastOf(said, 2000))
	}
	over := newServer(t, backend, shared)
	s.ok(os.Mkdir(filepath.Join(over.dir, "data"), 0o700))
	if out, errs, err := over.command("recover"); err != nil || !strings.Contains(out, "data directory") {
		t.Errorf("recover: %v\n%s%s", err, out, errs)
	}
}

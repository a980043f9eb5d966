package ordeal

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/bucket/buckettest"
	"github.com/tinsmith/tinsmith/plugins/plugintest/lan"
)

// takeoverLimit is far more than a takeover takes, and less than what waits for TCP to give up.
const takeoverLimit = 30 * time.Second

// serviceOn runs a server of e2e's on a machine until the end of the test, and gives the URL that its script puts into a variable; "" if it did not start.
func serviceOn(t *testing.T, m *lan.Machine, script, variable string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "url")
	c := exec.Command(filepath.Join(root(), "e2e", script), "sh", "-c", `printf %s "$`+variable+`" > "$0.new" && mv "$0.new" "$0" && exec cat`, file)
	c.Env = append(os.Environ(), variable+"=", "TINSMITH_TEST_LISTEN="+m.Address())
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	c.Stdout, c.Stderr = &out, &out
	if err := m.Start(c); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = c.Wait(); close(ended) }()
	t.Cleanup(func() {
		stdin.Close() // which ends cat, and so all of it
		<-ended
		if t.Failed() && out.Len() > 0 {
			t.Logf("%s: %s", script, lastOf(out.String(), 2000))
		}
	})
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if b, err := os.ReadFile(file); err == nil {
			return string(b)
		}
		select {
		case <-ended:
			t.Fatalf("%s: %s", script, out.String())
		default:
		}
	}
	t.Fatalf("%s does not start", script)
	return ""
}

// trio is a couple on a network of the kernel, with a backend, and PostgreSQL on a machine of its own, on which MinIO is as well if TINSMITH_S3 is set.
type trio struct {
	*couple
	database *lan.Machine
}

func newTrio(t *testing.T) trio {
	t.Helper()
	network := lan.New(t)
	database := network.Machine()
	url := serviceOn(t, database, "postgres.sh", "TINSMITH_POSTGRES")
	if url == "" {
		t.Skip("no PostgreSQL could be started on a machine of its own")
	}
	var bucket *buckettest.Server
	if os.Getenv("TINSMITH_S3") != "" {
		bucket = buckettest.At(t, serviceOn(t, database, "minio.sh", "TINSMITH_S3"))
	}
	t.Setenv("TINSMITH_POSTGRES", url)
	dir := t.TempDir()
	file := schema(t, dir)
	p := newPlatformOn(t, "fake", network.Machine())
	backend := p.section(p.address, settings{"plugin": "fake"})
	machines := [2]*lan.Machine{network.Machine(), network.Machine()}
	return trio{newCoupleOf(t, backend, recoveryOften(), [2][]string{}, dir, [2]string{file, file}, bucket, machines), database}
}

// lose has the gateway that serves lose what fault takes from it, and gives it back when the other one has taken over and worked. The first one then
// must end itself.
func (c trio) lose(t *testing.T, random *rand.Rand, fault func(s *server, on bool)) {
	first := c.serving()
	other := c.gateways[0]
	if other == first {
		other = c.gateways[1]
	}
	_, ended := first.running()
	caller := newCaller(t, c.url)
	r := caller.create(caller.session(), 0, 4)
	r.pass(0, 1, 8).must()
	time.Sleep(time.Duration(random.IntN(250)) * time.Millisecond)
	begun := time.Now()
	fault(first, true)
	defer func() {
		fault(first, false)
		select {
		case <-ended:
		case <-time.After(within):
			t.Error("a gateway that another one has taken over from goes on")
		}
	}()
	other.await("serving", func(h health) bool { return h.Status == "ok" })
	serves := time.Since(begun)
	if _, _, err := r.pass(1, 1, 8).result(); err != nil {
		t.Error(err)
	}
	took := time.Since(begun)
	t.Logf("the other gateway serves after %v, and gives a first result after %v", serves.Round(10*time.Millisecond), took.Round(10*time.Millisecond))
	if took > takeoverLimit {
		t.Errorf("a takeover took %v", took)
	}
	time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond) // it works
}

// TestStandbyOnBrokenNetwork has two gateways, their database, and a backend each on a machine of its own. The one that serves loses the network, wholly
// or in one direction, or the database alone, while its processes live on: the other takes over, clients only wait, and the first one does nothing that
// counts when the network is back, and ends itself. All that comes out is what an undisturbed server gives. The database's machine loses the network,
// too.
func TestStandbyOnBrokenNetwork(t *testing.T) {
	if os.Getenv("TINSMITH_POSTGRES") == "" {
		t.Skip("TINSMITH_POSTGRES is not set, and so PostgreSQL not wanted")
	}
	if !lan.Inside(t) {
		return
	}
	random := networkRandom(t)
	want, _, _, _ := live(t, victim{backend: settings{"plugin": "fake"}})
	c := newTrio(t)
	cases := []struct {
		name  string
		fault func(s *server, on bool)
	}{
		{"the gateway is down", func(s *server, on bool) { s.machine.Down(on) }},
		{"the gateway is silent", func(s *server, on bool) { s.machine.Mute(on); s.machine.Deaf(on) }},
		{"the gateway is deaf to the database", func(s *server, on bool) { s.machine.Deaf(on, c.database) }},
		{"the database is away", nil},
		{"the gateway is mute", func(s *server, on bool) { s.machine.Mute(on) }},
		{"the gateway is deaf", func(s *server, on bool) { s.machine.Deaf(on) }},
		{"the gateway is mute for the database", func(s *server, on bool) { s.machine.Mute(on, c.database) }},
		{"the database is away for a while", nil},
	}
	if os.Getenv("E2E_LEVEL") != "all" {
		cases = cases[:4]
	}
	for _, one := range cases {
		t.Log(one.name)
		var disturbing sync.WaitGroup
		disturbing.Go(func() {
			if one.fault != nil {
				c.lose(t, random, one.fault)
				return
			}
			time.Sleep(time.Duration(random.IntN(250)) * time.Millisecond)
			c.database.Down(true)
			time.Sleep(time.Duration(1000+random.IntN(6000)) * time.Millisecond)
			c.database.Down(false)
		})
		got := c.script()
		disturbing.Wait()
		compare(t, got, want)
		for _, s := range c.gateways { // the next one needs both
			s.await("up", func(h health) bool { return h.Status == "ok" || h.Status == "standby" })
		}
		if t.Failed() {
			return
		}
	}
	c.end()
	if text := c.gateways[0].log() + c.gateways[1].log(); !strings.Contains(text, "this gateway ends") {
		t.Error("the log of the gateways does not say that one was fenced off")
	}
}

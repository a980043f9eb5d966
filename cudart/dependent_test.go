package cudart

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

// early finds what a kernel does before it waits; the submatches are its name and its instructions.
var early = regexp.MustCompile(`(?s)^\.entry (\w+)\([^{]*\n\{\n(.*?)` + regexp.QuoteMeta(waitThenLetIn))

// notHarmless matches lines of PTX that may not come before the wait: what goes elsewhere, and memory other than arguments and what is asked for.
var notHarmless = regexp.MustCompile(`(?m)^(\$.*:|.*\b(bra|bar|call|ret|exit|trap)\b.*|\t[^/.].*\[.*)$`)

func harmless(instructions string) (wrong string, ok bool) {
	for _, line := range notHarmless.FindAllString(instructions, -1) {
		if !strings.HasPrefix(line, "\tld.param.") && !strings.Contains(line, "\t@wanted cp.async.bulk.prefetch.L2.global [%rd") {
			return line, false
		}
	}
	return "", true
}

// Every kernel of every module waits before its first instruction, but those of few rows' products, which ask for weights before and do nothing else; and
// nothing else changes.
func TestEveryKernelWaits(t *testing.T) {
	_, common, err := ptx(9, 0)
	if err != nil {
		t.Fatal(err)
	}
	modules := map[string][]byte{"sm_90a": common}
	for _, name := range []string{warpgroupModule, bulkModule, attentionModule, outerModule} {
		if modules[name], err = module(name); err != nil {
			t.Fatal(err)
		}
	}
	few := regexp.MustCompile(`^product_(e4m3_|blocks_)?(16x32|32x32|64x32|64x96)$|^product_cluster_`)
	asking := 0
	for name, text := range modules {
		changed := waiting(text)
		kernels, waits := 0, bytes.Count(changed, []byte(waitThenLetIn))
		for i, rest := range bytes.Split(changed, []byte("\n.visible ")) {
			if i == 0 {
				continue
			}
			kernels++
			found := early.FindSubmatch(rest)
			if found == nil {
				t.Errorf("%s: a kernel does not wait: %.60s", name, rest)
				continue
			}
			kernel, before := string(found[1]), string(found[2])
			if few.MatchString(kernel) != (before != "") {
				t.Errorf("%s: %s has %d lines before it waits", name, kernel, strings.Count(before, "\n"))
			}
			if wrong, ok := harmless(before); !ok {
				t.Errorf("%s: %s does not wait before %q", name, kernel, wrong)
			}
			asking += strings.Count(before, "prefetch.L2")
		}
		if kernels == 0 || waits != kernels {
			t.Errorf("%s: %d waits in %d kernels", name, waits, kernels)
		}
		var same strings.Builder // what the text is without comments for instructions
		for line := range strings.Lines(strings.ReplaceAll(string(text), earlyWait, "")) {
			if rest, ok := strings.CutPrefix(line, earlyMark); ok {
				line = "	" + rest
			}
			same.WriteString(line)
		}
		if strings.ReplaceAll(string(changed), waitThenLetIn, "") != same.String() {
			t.Errorf("%s: something else has changed", name)
		}
		if bytes.Contains(text, []byte("griddepcontrol")) || !bytes.Contains(text, []byte("\n.target sm_90a\n")) {
			t.Errorf("%s: the instructions are there already, or it is for another architecture", name)
		}
	}
	if asking != 16 {
		t.Errorf("%d kernels ask for weights before they wait, want 16", asking)
	}
	for _, line := range []string{"\tld.global.f32 \t%f1, [%rd1];", "\t@%p1 bra \t$L__BB0_2;", "$L__BB0_2:", "\tbar.sync \t0;", "\tst.global.f32 \t[%rd1], %f1;", "\t@%p1 ld.global.u32 \t%r1, [%rd2];"} {
		if _, ok := harmless("\tadd.s64 \t%rd1, %rd2, %rd3;\n" + line + "\n"); ok {
			t.Errorf("%q is harmless", line)
		}
	}
	if text := []byte("// no kernels\n"); !bytes.Equal(waiting(text), text) {
		t.Error("a module without kernels has changed")
	}
}

// A series of launches that overlap has the bits of one whose launches wait for each other, in whatever order threads run.
func TestDependentLaunches(t *testing.T) {
	for _, order := range orders("20261129") {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			found, err := v.CheckDependentLaunches()
			if err != nil {
				t.Fatal(err)
			}
			if found.Apart <= 0 || found.Dependent <= 0 || !v.DependentLaunches() {
				t.Errorf("times %+v; dependent: %v", found, v.DependentLaunches())
			}
			if v.recorder.off || len(v.recorder.known) == 0 {
				t.Error("no graphs were made")
			}
		})
	}
}

// Kernels that do not wait, or fail, are found; a device or a driver that has no such launches says so, and goes on without.
func TestDependentLaunchesDiffer(t *testing.T) {
	for _, c := range []struct{ name, variable, value, want string }{
		{"kernels that do not wait", "FAKE_CUDA_NO_WAIT", "1", "dependent launches, 1 rows: the last product's bits are not those of launches one after another"},
		{"a fault", "FAKE_CUDA_FAIL", "cuGraphLaunch:3:719", "a graph could not be made or started"},
		{"kernels that cannot be loaded", "FAKE_CUDA_FAIL", "cuModuleLoadDataEx:1:1", "compiling the kernels (sm_90a)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := openDevice(t, openDriver(t), 0)
			t.Setenv(c.variable, c.value)
			if _, err := v.CheckDependentLaunches(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
	t.Run("a kernel that reads before it waits", func(t *testing.T) {
		v := openDevice(t, openDriver(t), 0)
		random := func() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
		series := func() []byte {
			s := dependentSeries{operandsOf: operandsOf{v: v, random: random()}}
			s.prepare(1)
			out, _, err := s.run()
			if err := errors.Join(err, s.free()); err != nil {
				t.Fatal(err)
			}
			return out
		}
		want := series()
		architecture, text, err := ptx(9, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			before string
			equal  bool
		}{{"", true}, {"\tld.global.u32 \t%r1, [%rd1];\n", false}} {
			if err := v.forgetGraphs(); err != nil {
				t.Fatal(err)
			}
			v.c.dependent = 1
			if err := v.loadModule(0, architecture, bytes.ReplaceAll(text, []byte(earlyWait), []byte(c.before+earlyWait)), 0, kernels); err != nil {
				t.Fatal(err)
			}
			if got := series(); bytes.Equal(got, want) != c.equal {
				t.Errorf("with %q before the wait, bits are equal: %v", c.before, !c.equal)
			}
		}
	})
	t.Run("no Hopper", func(t *testing.T) {
		t.Setenv("FAKE_CUDA_MAJOR", "8")
		v := openDevice(t, openDriver(t), 0)
		if err := v.UseDependentLaunches(); err == nil || !strings.Contains(err.Error(), "are for compute capability 9.0") || v.DependentLaunches() {
			t.Errorf("error %v; dependent: %v", err, v.DependentLaunches())
		}
	})
	t.Run("an old driver", func(t *testing.T) {
		d := openDriver(t)
		v := openDevice(t, d, 0)
		withoutEdges(d)
		if err := v.UseDependentLaunches(); err == nil || !strings.Contains(err.Error(), "no cuGraphAddDependencies_v2") || v.DependentLaunches() {
			t.Errorf("error %v; dependent: %v", err, v.DependentLaunches())
		}
	})
	t.Run("other kernels are there", func(t *testing.T) {
		v := openDevice(t, openDriver(t), 0)
		if err := v.UseOuterGroups(); err != nil {
			t.Fatal(err)
		}
		if err := v.UseDependentLaunches(); err == nil || !strings.Contains(err.Error(), "before other kernels are loaded") {
			t.Errorf("error %v", err)
		}
	})
}

package cudart

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
)

// Every kernel of every module waits before its first instruction, and nothing else changes.
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
	begins := regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\([^{]*\{\n` + regexp.QuoteMeta(waitThenLetIn))
	for name, text := range modules {
		changed := waiting(text)
		kernels, waits := bytes.Count(text, []byte(".entry ")), len(begins.FindAll(changed, -1))
		if kernels == 0 || waits != kernels {
			t.Errorf("%s: %d of %d kernels begin by waiting", name, waits, kernels)
		}
		if !bytes.Equal(bytes.ReplaceAll(changed, []byte(waitThenLetIn), nil), text) {
			t.Errorf("%s: something else has changed", name)
		}
		if bytes.Contains(text, []byte("griddepcontrol")) || !bytes.Contains(text, []byte("\n.target sm_90a\n")) {
			t.Errorf("%s: the instructions are there already, or it is for another architecture", name)
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

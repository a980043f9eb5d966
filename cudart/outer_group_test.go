package cudart

import (
	"slices"
	"strings"
	"testing"
)

// The module has the kernel of the table.
func TestOuterGroupTable(t *testing.T) {
	text, err := module(outerModule)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), ".visible .entry "); n != 1 || !strings.Contains(string(text), ".visible .entry outer_group(") || !strings.Contains(string(text), ".maxntid 128, 1, 1") {
		t.Errorf("%d kernels in the PTX, want outer_group of 128 threads", n)
	}
	if kGroupAttention+len(groupAttentionKernels) > kOuterGroup || kOuterGroup+len(outerGroupKernels) > kWarpgroup+56 || kernelOf(kOuterGroup).name != "outer_group" {
		t.Errorf("number %d is %s", kOuterGroup, kernelOf(kOuterGroup).name)
	}
}

// Groups of rows begin at multiples of 16 of a position, wherever a part of a sequence does.
func TestOuterGroupsOfRows(t *testing.T) {
	span := func(from, to int32) (all []int32) {
		for p := from; p < to; p++ {
			all = append(all, p)
		}
		return all
	}
	for _, c := range []struct {
		name      string
		positions []int32
		want      []int32 // how many rows each has
	}{
		{"one sequence", span(0, 40), []int32{16, 16, 8}},
		{"several", slices.Concat(span(0, 17), span(0, 1), span(0, 16), span(0, 3)), []int32{16, 1, 1, 16, 3}},
		{"the rest of a sequence", slices.Concat(span(32, 50), span(0, 2)), []int32{16, 2, 2}},
		{"a part that begins within a group", span(5, 20), []int32{11, 4}},
		{"none", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []int32
			next := int32(0)
			for _, g := range appendGroups(nil, c.positions, 0, int64(len(c.positions))) {
				if int32(g.first) != next {
					t.Errorf("a group begins at row %d, want %d", g.first, next)
				}
				next += int32(g.count)
				got = append(got, int32(g.count))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("groups of %v rows, want %v", got, c.want)
			}
		})
	}
}

// Outer products by groups of rows are as near to float64 as is promised, have the same bits however they are cut, and write nothing beside G, in whatever order threads run.
func TestOuterGroups(t *testing.T) {
	for _, order := range orders("20261129", "1") {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			found, err := v.CheckOuterGroups()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("largest error of groups %.2g, of chains %.2g of the sums of magnitudes", found.GroupsError, found.ChainsError)
			if found.Groups <= 0 || found.Chains <= 0 || found.GroupsError <= 0 {
				t.Errorf("found %+v", found)
			}
		})
	}
}

// A kernel that does nothing, or cannot be loaded, is found.
func TestOuterGroupsDiffer(t *testing.T) {
	for _, c := range []struct{ name, variable, value, want string }{
		{"nothing is computed", "FAKE_CUDA_SKIP", "outer_group", "an element is further from float64"},
		{"a fault", "FAKE_CUDA_FAIL", "cuLaunchKernel:2:719", "CUDA_ERROR_LAUNCH_FAILED"},
		{"a module that cannot be loaded", "FAKE_CUDA_FAIL", "cuModuleLoadDataEx:1:1", "compiling the kernels (sm_90a_outer)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := openDevice(t, openDriver(t), 0)
			t.Setenv(c.variable, c.value)
			if _, err := v.CheckOuterGroups(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			t.Setenv(c.variable, "")
			if err := v.UseOuterGroups(); err != nil {
				t.Errorf("another try: %v", err)
			}
		})
	}
}

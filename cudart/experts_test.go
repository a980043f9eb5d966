package cudart

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// A launch has blocks for all tiles that rows of experts can have, however they are shared out, and for some way to share them out it needs them all.
func TestTilesOfExperts(t *testing.T) {
	random := rand.New(rand.NewPCG(16, 17))
	for _, c := range []struct{ experts, rows, height int64 }{{1, 1, 16}, {1, 64, 64}, {1, 65, 64}, {8, 5, 16}, {8, 8, 16}, {128, 512, 16}, {3, 700, 64}, {7, 0, 16}, {60, 1000, 128}} {
		table := ExpertTable{Experts: c.experts, To: c.experts}
		most := table.tiles(c.rows, c.height)
		tiles := func(loads []int64) (n int64) {
			for _, rows := range loads {
				n += (rows + c.height - 1) / c.height
			}
			return n
		}
		for range 100 {
			loads := make([]int64, c.experts)
			for range c.rows {
				loads[random.Int64N(1+random.Int64N(c.experts))]++
			}
			if n := tiles(loads); n > most {
				t.Errorf("%+v: %v are %d tiles, and there are blocks for %d", c, loads, n, most)
			}
		}
		worst := make([]int64, c.experts) // a row each, and the others in whole tiles
		left := c.rows
		for e := range worst {
			if left > 0 {
				worst[e], left = 1, left-1
			}
		}
		worst[0] += left / c.height * c.height
		if n := tiles(worst); n != most {
			t.Errorf("%+v: %d tiles are needed, and there are blocks for %d", c, n, most)
		}
	}
}

// Rows are counted in 32 bits, and so is the inner axis: what has more is refused before anything is launched.
func TestExpertsTooLarge(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	if err := v.Dispatch(ExpertTable{Tokens: 1 << 30, Slots: 2, Experts: 4, To: 4}, View{}); err == nil || !strings.Contains(err.Error(), "2147483648 rows") {
		t.Errorf("error %v", err)
	}
	long := []RoutedProduct{{Weight: Weight{Out: 8, In: 1 << 31, Pitch: 1 << 31}, End: 1}}
	if err := v.RoutedProducts(ExpertTable{Tokens: 1, Slots: 1, Experts: 1, To: 1}, long, BFloat16, false); err == nil || !strings.Contains(err.Error(), "2147483648 elements") {
		t.Errorf("error %v", err)
	}
}

package engine

import (
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// routedDevice is a device that says so.
type routedDevice struct {
	tensor.Device
	name, routes string
}

func (d *routedDevice) Name() string   { return d.name }
func (d *routedDevice) Routes() string { return d.routes }

// Who computes products is said once of devices that do alike, and by name of those that do not.
func TestRoutes(t *testing.T) {
	on := func(name, routes string) tensor.Device { return &routedDevice{dry.Device{}, name, routes} }
	for _, c := range []struct {
		name    string
		devices []tensor.Device
		want    string
	}{
		{"a processor", []tensor.Device{dry.Device{}}, ""},
		{"a GPU", []tensor.Device{on("cuda:0", "by warps")}, "by warps"},
		{"alike", []tensor.Device{on("cuda:0", "by warps"), on("cuda:1", "by warps")}, "by warps"},
		{"not alike", []tensor.Device{on("cuda:0", "by warps"), on("cuda:1", "by warpgroups"), on("cuda:2", "by warps")}, "cuda:0, cuda:2: by warps; cuda:1: by warpgroups"},
	} {
		if got := (&homes{devices: c.devices}).routes(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

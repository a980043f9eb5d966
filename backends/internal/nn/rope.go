package nn

import (
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Rope are the settings of rotary positions.
type Rope struct {
	Theta float64
	// Llama3 stretches low frequencies as Llama 3.1 does, YaRN and LongRoPE as those do; nil = no scaling. At most one of them is there.
	Llama3   *Llama3Scaling
	YaRN     *YaRN
	LongRoPE *LongRoPE
}

// Llama3Scaling divides frequencies whose wavelength is beyond OriginalPositions / LowFrequencyFactor by Factor, leaves those below OriginalPositions / HighFrequencyFactor, and goes linearly from one to the other between.
type Llama3Scaling struct {
	Factor, LowFrequencyFactor, HighFrequencyFactor float64
	OriginalPositions                               int
}

// frequencies gives the angle per position for each pair of elements, in a context of so many positions. Rounded to float32 where Hugging Face transformers rounds, which matters at far positions.
func (r Rope) frequencies(dim, positions int) []float32 {
	f := make([]float32, dim/2)
	for i := range f {
		exponent := float32(2*i) / float32(dim)
		f[i] = 1 / float32(math.Pow(r.Theta, float64(exponent)))
	}
	if r.YaRN != nil {
		return r.YaRN.frequencies(r.Theta, dim)
	}
	if r.LongRoPE != nil {
		return r.LongRoPE.frequencies(r.Theta, dim, positions)
	}
	s := r.Llama3
	if s == nil {
		return f
	}
	original := float64(s.OriginalPositions)
	for i, v := range f {
		wavelength := 2 * math.Pi / float64(v)
		switch {
		case wavelength < original/s.HighFrequencyFactor:
		case wavelength > original/s.LowFrequencyFactor:
			f[i] = v / float32(s.Factor)
		default:
			smooth := float32((original/wavelength - s.LowFrequencyFactor) / (s.HighFrequencyFactor - s.LowFrequencyFactor))
			stretched := float32((1-smooth)*v) / float32(s.Factor)
			f[i] = stretched + float32(smooth*v)
		}
	}
	return f
}

// StillColumns are those of StillTable.
const StillColumns = 2

// StillTable makes a table that turns nothing, whatever the position.
func StillTable(device tensor.Device, positions int) (tensor.Tensor, error) {
	table, err := device.Alloc(tensor.Float32, positions, StillColumns)
	if err != nil {
		return table, fmt.Errorf("table of rotary positions: %w", err)
	}
	values := make([]float32, 2*positions)
	for p := range positions {
		values[2*p] = 1 // the cosine of 0
	}
	if err := device.Upload(table, values); err != nil {
		device.Free(table)
		return table, err
	}
	return table, nil
}

// Table makes the table that tensor.Device.Rope reads, for a context of so many positions: positions × dim, in each row dim/2 cosines, then dim/2 sines.
func (r Rope) Table(device tensor.Device, positions, dim int) (tensor.Tensor, error) {
	table, err := device.Alloc(tensor.Float32, positions, dim)
	if err != nil {
		return table, fmt.Errorf("table of rotary positions: %w", err)
	}
	f, scale := r.frequencies(dim, positions), float32(1)
	switch {
	case r.YaRN != nil:
		scale = r.YaRN.scale()
	case r.LongRoPE != nil:
		scale = float32(r.LongRoPE.AttentionFactor)
	}
	const block = 1024 // rows uploaded at once
	values := make([]float32, min(block, positions)*dim)
	for from := 0; from < positions; from += block {
		to := min(from+block, positions)
		for p := from; p < to; p++ {
			row := values[(p-from)*dim : (p-from+1)*dim]
			for i, v := range f {
				angle := float64(float32(p) * v)
				row[i], row[dim/2+i] = float32(math.Cos(angle))*scale, float32(math.Sin(angle))*scale
			}
		}
		if err := device.Upload(table.Slice(from, to), values[:(to-from)*dim]); err != nil {
			device.Free(table)
			return table, err
		}
	}
	return table, nil
}

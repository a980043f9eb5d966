package model

import "fmt"

// DeltaNet are the sizes of a model's layers of linear attention.
type DeltaNet struct {
	KeyHeads, ValueHeads     int // every key head serves equally many value heads
	KeyHeadDim, ValueHeadDim int
	Kernel                   int // positions that the convolution sees
}

// deltaNetJSON are the keys of config.json about layers of linear attention.
type deltaNetJSON struct {
	LinearKeyHeads     *int    `json:"linear_num_key_heads"`
	LinearValueHeads   *int    `json:"linear_num_value_heads"`
	LinearKeyHeadDim   *int    `json:"linear_key_head_dim"`
	LinearValueHeadDim *int    `json:"linear_value_head_dim"`
	LinearKernel       *int    `json:"linear_conv_kernel_dim"`
	StateType          *string `json:"mamba_ssm_dtype"`
}

func (j *deltaNetJSON) hasDeltaNet() bool {
	return j.LinearKeyHeads != nil || j.LinearValueHeads != nil || j.LinearKeyHeadDim != nil || j.LinearValueHeadDim != nil || j.LinearKernel != nil
}

// deltaNet reads what a configuration says of linear attention, nil if it has none.
func (j *deltaNetJSON) deltaNet() (*DeltaNet, error) {
	if !j.hasDeltaNet() {
		return nil, nil
	}
	d := &DeltaNet{}
	for _, s := range []size{
		{"linear_num_key_heads", j.LinearKeyHeads, mostHeads, &d.KeyHeads},
		{"linear_num_value_heads", j.LinearValueHeads, mostHeads, &d.ValueHeads},
		{"linear_key_head_dim", j.LinearKeyHeadDim, mostHeads, &d.KeyHeadDim},
		{"linear_value_head_dim", j.LinearValueHeadDim, mostHeads, &d.ValueHeadDim},
		{"linear_conv_kernel_dim", j.LinearKernel, 64, &d.Kernel},
	} {
		if err := s.read(); err != nil {
			return nil, err
		}
	}
	if d.ValueHeads%d.KeyHeads != 0 {
		return nil, fmt.Errorf("linear_num_value_heads %d is not a multiple of linear_num_key_heads %d", d.ValueHeads, d.KeyHeads)
	}
	if j.StateType != nil && *j.StateType != "float32" {
		return nil, fmt.Errorf("mamba_ssm_dtype is %.40q, only float32 is supported", *j.StateType)
	}
	return d, nil
}

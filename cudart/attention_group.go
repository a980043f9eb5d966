package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
)

// Attention by warpgroups is a module of its own for Hopper (kernels/attention_group.cu), which is loaded when it is asked for. Nobody has run it on a GPU yet: CheckGroupAttention says whether it gives the bits of the kernels by warps
// there, and whether it takes less time.

// attentionModule is its file.
const attentionModule = "sm_90a_attention"

// kGroupAttention is the first of the numbers of its kernels, behind those for weights in blocks: for each head dimension the forward pass, then the gradients of keys and of queries.
const (
	kGroupAttention                = kBulk + 32
	kGroupAttentionBackwardKeys    = kGroupAttention + groupAttentions
	kGroupAttentionBackwardQueries = kGroupAttention + 2*groupAttentions
)

// What blocks of the kernels have.
const (
	groupItems      = 128 // of two warpgroups
	groupPages      = 2   // likewise
	groupThreads    = 384
	groupStep       = 32 // items that the gradient of keys takes at once
	groupBarriers   = 16 // bytes of the two barriers of a place
	groupAttentions = 2  // head dimensions that there are kernels for: the first of tensorHeadDims
)

var groupAttentionKernels = func() (table []kernel) {
	// A ring of places with their barriers, what both warpgroups have of their own, and what is lost because matrices begin at multiples of 1,024.
	family := func(name string, shared func(dim, pages int) int) {
		for i, pages := range [groupAttentions]int{8, 6} { // places for keys or values
			dim := int(tensorHeadDims[i])
			table = append(table, kernel{fmt.Sprintf("%s_%d", name, dim), groupThreads, 1024 + shared(dim, pages)})
		}
	}
	page := func(dim int) int { return 2 * C.PAGE_KEYS * dim }
	family("group_attention", func(dim, pages int) int {
		return pages*(page(dim)+groupBarriers) + 2*(page(dim)+4*(C.PAGE_KEYS+4))
	})
	family("group_attention_backward_keys", func(dim, _ int) int {
		const places = 5
		return places*(2*2*groupStep*dim+1024+groupBarriers) + groupPages*2*page(dim)
	})
	family("group_attention_backward_queries", func(dim, pages int) int { return pages*(page(dim)+groupBarriers) + 2*2*page(dim) })
	return table
}()

// UseGroupAttention has Attention and AttentionBackward use warpgroups where many rows and the head dimension make them pay, or no more. The first use compiles the kernels. Only devices whose Information has Warpgroups can.
func (v *Device) UseGroupAttention(use bool) error {
	if v.c == nil {
		return errClosed
	}
	if use && v.c.modules[3] == nil {
		text, err := module(attentionModule)
		if err != nil {
			return err
		}
		if err := v.loadModule(3, attentionModule, text, kGroupAttention, groupAttentionKernels); err != nil {
			return err
		}
	}
	v.groupAttention = use
	return nil
}

// GroupAttention says whether Attention and AttentionBackward use warpgroups.
func (v *Device) GroupAttention() bool { return v.groupAttention }

// byWarpgroups says whether there are kernels by warpgroups for the pages, and they are used.
func (v *Device) byWarpgroups(c Cache) bool {
	return v.groupAttention && c.TensorCores() && c.Dim <= tensorHeadDims[groupAttentions-1]
}

// roundedForAttention gives rows as the kernels take them: bfloat16 at multiples of 16 bytes. give gives back what was taken for that; ok is false where there is no memory.
func (v *Device) roundedForAttention(of ...tailRows) (rows []View, give func() error, ok bool, err error) {
	var taken []Address
	give = func() (err error) {
		for i := len(taken) - 1; i >= 0; i-- { // scratch memory is a stack
			err = errors.Join(err, v.giveScratch(taken[i]))
		}
		return err
	}
	for _, x := range of {
		if inChunks(x.x, x.xType) {
			rows = append(rows, x.x)
			continue
		}
		to, err := v.narrowRows(x.x, x.xType)
		if err != nil {
			return nil, nil, false, errors.Join(ifMemory(err), give())
		}
		rows, taken = append(rows, to), append(taken, to.At)
	}
	return rows, give, true, nil
}

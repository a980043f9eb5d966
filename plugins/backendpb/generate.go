// Package backendpb is the generated wire form of the contract in package plugins; backend.proto is its source. Only package plugins uses it.
package backendpb

//go:generate ../../e2e/generated.sh write

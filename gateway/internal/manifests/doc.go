// Package manifests tests configs/kubernetes: it builds the overlays as kubectl does, decodes them with Kubernetes' own types, and has our programs read the arguments and configurations that are in them. It is a package of its own because
// these types are large, and nothing else needs them.
package manifests

package manifests

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/tinsmith/tinsmith/gateway/internal/cmd"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/fleet"
	"github.com/tinsmith/tinsmith/gateway/internal/podrole"
	"github.com/tinsmith/tinsmith/plugins"
)

const (
	repositoryRoot = "../../.."
	inContainer    = "/opt/tinsmith/" // where the image has the repository
)

// What the manifests have of cert-manager's objects, which have no types in Kubernetes' own modules.
type (
	issuer struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			SelfSigned *struct{} `json:"selfSigned"`
			CA         *struct {
				SecretName string `json:"secretName"`
			} `json:"ca"`
		} `json:"spec"`
	}
	certificate struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			IsCA       bool            `json:"isCA"`
			CommonName string          `json:"commonName"`
			DNSNames   []string        `json:"dnsNames"`
			SecretName string          `json:"secretName"`
			Duration   metav1.Duration `json:"duration"`
			Usages     []string        `json:"usages"`
			PrivateKey struct {
				Algorithm      string `json:"algorithm"`
				Size           int    `json:"size"`
				RotationPolicy string `json:"rotationPolicy"`
			} `json:"privateKey"`
			IssuerRef struct{ Group, Kind, Name string } `json:"issuerRef"`
		} `json:"spec"`
	}
)

// cluster is what an overlay makes, by kind and name.
type cluster struct {
	*testing.T
	overlay      string
	deployments  map[string]*appsv1.Deployment
	sets         map[string]*appsv1.StatefulSet
	services     map[string]*corev1.Service
	accounts     map[string]*corev1.ServiceAccount
	configs      map[string]*corev1.ConfigMap
	claims       map[string]*corev1.PersistentVolumeClaim
	budgets      map[string]*policyv1.PodDisruptionBudget
	networks     map[string]*networkingv1.NetworkPolicy
	scalers      map[string]*autoscalingv2.HorizontalPodAutoscaler
	roles        map[string]*rbacv1.Role
	bindings     map[string]*rbacv1.RoleBinding
	issuers      map[string]*issuer
	certificates map[string]*certificate
}

// decoded decodes an object, which may have nothing that its type has not.
func decoded[T any](t *testing.T, text []byte, name string, into *map[string]*T) {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict(text, o); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if *into == nil {
		*into = map[string]*T{}
	}
	if (*into)[name] != nil {
		t.Errorf("%s is there twice", name)
	}
	(*into)[name] = o
}

// build is `kubectl kustomize`.
func build(t *testing.T, overlay string) *cluster {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(repositoryRoot, "configs/kubernetes/overlays", overlay))
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{T: t, overlay: overlay}
	for _, r := range built.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		name := r.GetName()
		if r.GetNamespace() != "tinsmith" {
			t.Errorf("%s is in namespace %q", r.CurId(), r.GetNamespace())
		}
		switch kind := r.GetGvk().String(); kind {
		case "Deployment.v1.apps":
			decoded(t, text, name, &c.deployments)
		case "StatefulSet.v1.apps":
			decoded(t, text, name, &c.sets)
		case "Service.v1.[noGrp]":
			decoded(t, text, name, &c.services)
		case "ServiceAccount.v1.[noGrp]":
			decoded(t, text, name, &c.accounts)
		case "ConfigMap.v1.[noGrp]":
			decoded(t, text, name, &c.configs)
		case "PersistentVolumeClaim.v1.[noGrp]":
			decoded(t, text, name, &c.claims)
		case "PodDisruptionBudget.v1.policy":
			decoded(t, text, name, &c.budgets)
		case "NetworkPolicy.v1.networking.k8s.io":
			decoded(t, text, name, &c.networks)
		case "HorizontalPodAutoscaler.v2.autoscaling":
			decoded(t, text, name, &c.scalers)
		case "Role.v1.rbac.authorization.k8s.io":
			decoded(t, text, name, &c.roles)
		case "RoleBinding.v1.rbac.authorization.k8s.io":
			decoded(t, text, name, &c.bindings)
		case "Issuer.v1.cert-manager.io":
			decoded(t, text, name, &c.issuers)
		case "Certificate.v1.cert-manager.io":
			decoded(t, text, name, &c.certificates)
		default:
			t.Errorf("%s has the unknown kind %s", name, kind)
		}
	}
	return c
}

// pods are the templates of all pods, by the name of what makes them.
func (c *cluster) pods() map[string]corev1.PodTemplateSpec {
	out := map[string]corev1.PodTemplateSpec{}
	for name, d := range c.deployments {
		out[name] = d.Spec.Template
	}
	for name, s := range c.sets {
		out[name] = s.Spec.Template
	}
	return out
}

// selects tells whether labels are in others.
func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// selected are the pods that a selector means, which must be some.
func (c *cluster) selected(what string, selector map[string]string) (found []corev1.PodTemplateSpec) {
	c.Helper()
	for _, pod := range c.pods() {
		if selects(selector, pod.Labels) {
			found = append(found, pod)
		}
	}
	if len(found) == 0 {
		c.Errorf("%s: no pod has the labels %v", what, selector)
	}
	return found
}

// port checks that a pod's container has a port, by name or by number.
func (c *cluster) port(what string, pod corev1.PodTemplateSpec, port intstr.IntOrString) {
	c.Helper()
	for _, container := range pod.Spec.Containers {
		for _, p := range container.Ports {
			if port.Type == intstr.String && p.Name == port.StrVal || port.Type == intstr.Int && p.ContainerPort == port.IntVal {
				return
			}
		}
	}
	c.Errorf("%s: port %s is none of the pod's", what, port.String())
}

// The manifests of each overlay are what Kubernetes' own types say, what they name is there, and pods have only what they need.
func TestKubernetes(t *testing.T) {
	overlays, err := os.ReadDir(filepath.Join(repositoryRoot, "configs/kubernetes/overlays"))
	if err != nil || len(overlays) != 3 {
		t.Fatalf("%v, %v", overlays, err)
	}
	for _, o := range overlays {
		t.Run(o.Name(), func(t *testing.T) {
			c := build(t, o.Name())
			c.checkPods()
			c.checkNames()
			c.checkCertificates()
			c.checkServed()
		})
	}
}

func (c *cluster) checkPods() {
	// Secrets that whoever sets it up makes, and docs/kubernetes.md says how.
	secrets := map[string]bool{"tinsmith-keys": true, "tinsmith-store": true, "tinsmith-hub": true, "tinsmith-s3": true}
	for _, certificate := range c.certificates {
		secrets[certificate.Spec.SecretName] = true
	}
	for name, pod := range c.pods() {
		spec := pod.Spec
		if s := spec.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil || s.FSGroup == nil {
			c.Errorf("%s runs with too many rights: %+v", name, s)
		}
		if spec.ServiceAccountName == "" && (spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken) {
			c.Errorf("%s has a token of an account that it does not need", name)
		}
		if spec.ServiceAccountName != "" && c.accounts[spec.ServiceAccountName] == nil {
			c.Errorf("%s: there is no account %s", name, spec.ServiceAccountName)
		}
		volumes := map[string]bool{}
		for _, v := range spec.Volumes {
			volumes[v.Name] = true
			if v.Secret != nil && !secrets[v.Secret.SecretName] || v.ConfigMap != nil && c.configs[v.ConfigMap.Name] == nil || v.PersistentVolumeClaim != nil && c.claims[v.PersistentVolumeClaim.ClaimName] == nil {
				c.Errorf("%s: what volume %s has is not there", name, v.Name)
			}
		}
		if set := c.sets[name]; set != nil {
			for _, claim := range set.Spec.VolumeClaimTemplates {
				volumes[claim.Name] = true
			}
			if s := c.services[set.Spec.ServiceName]; s == nil || !selects(s.Spec.Selector, pod.Labels) {
				c.Errorf("%s: its service %s does not lead to it", name, set.Spec.ServiceName)
			}
		}
		for _, container := range spec.Containers {
			if s := container.SecurityContext; s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				c.Errorf("%s runs with too many rights: %+v", name, s)
			}
			if container.Image == "" || strings.HasSuffix(container.Image, ":") {
				c.Errorf("%s: image %q", name, container.Image)
			}
			requests, limits := container.Resources.Requests, container.Resources.Limits
			if requests.Memory().IsZero() || requests.Cpu().IsZero() || limits.Memory().Cmp(*requests.Memory()) < 0 {
				c.Errorf("%s asks for %v and may have %v", name, requests, limits)
			}
			if a, b := requests["nvidia.com/gpu"], limits["nvidia.com/gpu"]; a.Cmp(b) != 0 {
				c.Errorf("%s asks for %s GPUs and may have %s", name, a.String(), b.String())
			}
			for _, m := range container.VolumeMounts {
				if !volumes[m.Name] {
					c.Errorf("%s: there is no volume %s", name, m.Name)
				}
				if strings.HasPrefix(m.MountPath, "/secrets/") && !m.ReadOnly {
					c.Errorf("%s may write to %s", name, m.MountPath)
				}
			}
			for _, e := range container.Env {
				if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && !secrets[e.ValueFrom.SecretKeyRef.Name] {
					c.Errorf("%s: there is no secret %s", name, e.ValueFrom.SecretKeyRef.Name)
				}
				if strings.Contains(e.Name, "TOKEN") && e.Value != "" || strings.Contains(e.Name, "SECRET") && e.Value != "" {
					c.Errorf("%s: %s is not read from a secret", name, e.Name)
				}
			}
			for what, probe := range map[string]*corev1.Probe{"liveness": container.LivenessProbe, "readiness": container.ReadinessProbe, "startup": container.StartupProbe} {
				switch {
				case probe == nil && what == "readiness":
					c.Errorf("%s: nobody sees whether it is ready", name)
				case probe == nil:
				case probe.HTTPGet != nil:
					c.port(name+"'s "+what, pod, probe.HTTPGet.Port)
				case probe.TCPSocket != nil:
					c.port(name+"'s "+what, pod, probe.TCPSocket.Port)
				}
			}
		}
	}
}

func (c *cluster) checkNames() {
	for name, s := range c.services {
		selector := maps.Clone(s.Spec.Selector)
		if role, ok := selector[podrole.Label]; ok { // which pods give themselves
			if delete(selector, podrole.Label); podrole.Role(role) != podrole.Active {
				c.Errorf("service %s leads to pods of the role %s", name, role)
			}
		}
		for _, pod := range c.selected("service "+name, selector) {
			for _, p := range s.Spec.Ports {
				c.port("service "+name, pod, p.TargetPort)
			}
		}
	}
	for name, d := range c.deployments {
		if !selects(d.Spec.Selector.MatchLabels, d.Spec.Template.Labels) {
			c.Errorf("%s does not find its own pods", name)
		}
		for _, e := range d.Spec.Template.Spec.Containers[0].Env {
			if e.Name == podrole.EnvPod && (e.ValueFrom == nil || e.ValueFrom.FieldRef == nil || e.ValueFrom.FieldRef.FieldPath != "metadata.name") {
				c.Errorf("%s: %s is not the pod's name", name, e.Name)
			}
		}
		if _, said := d.Spec.Template.Labels[podrole.Label]; said {
			c.Errorf("%s: its pods have a role before they know it", name)
		}
	}
	for name, s := range c.sets {
		if !selects(s.Spec.Selector.MatchLabels, s.Spec.Template.Labels) {
			c.Errorf("%s does not find its own pods", name)
		}
	}
	for name, b := range c.budgets {
		c.selected("budget "+name, b.Spec.Selector.MatchLabels)
	}
	limited := 0
	for name, n := range c.networks {
		pods := c.selected("network policy "+name, n.Spec.PodSelector.MatchLabels)
		limited += len(pods)
		if len(n.Spec.PolicyTypes) != 2 {
			c.Errorf("network policy %s limits %v alone", name, n.Spec.PolicyTypes)
		}
		for _, rule := range n.Spec.Ingress {
			for _, p := range rule.Ports {
				c.port("network policy "+name, pods[0], *p.Port)
			}
			for _, from := range rule.From {
				if from.PodSelector != nil {
					c.selected("network policy "+name, from.PodSelector.MatchLabels)
				}
			}
		}
	}
	if limited != len(c.pods()) {
		c.Errorf("%d of %d kinds of pods have a network policy", limited, len(c.pods()))
	}
	for name, b := range c.bindings {
		if c.roles[b.RoleRef.Name] == nil || len(b.Subjects) != 1 || c.accounts[b.Subjects[0].Name] == nil {
			c.Errorf("binding %s: %+v", name, b)
		}
	}
	for name, r := range c.roles {
		if fmt.Sprint(r.Rules) != fmt.Sprint([]rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"patch"}}}) {
			c.Errorf("role %s may %v", name, r.Rules)
		}
	}
}

func (c *cluster) checkCertificates() {
	for name, certificate := range c.certificates {
		i := c.issuers[certificate.Spec.IssuerRef.Name]
		if i == nil {
			c.Errorf("certificate %s: there is no issuer %s", name, certificate.Spec.IssuerRef.Name)
			continue
		}
		if certificate.Spec.IsCA != (i.Spec.SelfSigned != nil) {
			c.Errorf("certificate %s is signed by %s", name, i.Name)
		}
		if ca := i.Spec.CA; ca != nil {
			if authority := c.certificates[i.Name]; authority == nil || authority.Spec.SecretName != ca.SecretName || !authority.Spec.IsCA {
				c.Errorf("issuer %s: the authority is not there", i.Name)
			}
		}
	}
}

// checkServed checks that programs take what the manifests give them, and that both sides mean the same backends.
func (c *cluster) checkServed() {
	gateway := c.deployments["tinsmith-gateway"].Spec.Template.Spec.Containers[0]
	serve, flags, err := cmd.Program{}.Root().Find(gateway.Args)
	if err != nil || gateway.Command[0] != inContainer+"bin/tinsmith" || serve.Name() != "serve" {
		c.Fatalf("the gateway runs %v %v: %v", gateway.Command, gateway.Args, err)
	}
	if err := serve.ParseFlags(flags); err != nil {
		c.Error(err)
	}
	file := serve.Flag("config").Value.String()
	if at := mountOf(gateway, "config"); filepath.Dir(file) != at {
		c.Errorf("the gateway reads %s, and its configuration is in %s", file, at)
	}
	var text string
	for name, content := range c.configs {
		if strings.HasPrefix(name, "tinsmith-config-") { // and a hash, so that another configuration starts other pods
			text = content.Data[filepath.Base(file)]
		}
	}
	path := filepath.Join(c.TempDir(), "tinsmith.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.Fatal(err)
	}
	cfg, err := config.Load(path)
	if err != nil {
		c.Fatal(err)
	}
	if cfg.DataDir != mountOf(gateway, "data") || filepath.Dir(cfg.Auth.KeysFile) != mountOf(gateway, "keys") || filepath.Dir(cfg.Store.URLFile) != mountOf(gateway, "store") {
		c.Errorf("the gateway's folders are not where the configuration says: %+v", cfg)
	}
	set := c.sets["tinsmith-backend"]
	backend := set.Spec.Template.Spec.Containers[0]
	program, known := strings.CutPrefix(backend.Command[0], inContainer+"bin/plugins/")
	if _, err := fleet.Program(filepath.Join(repositoryRoot, "backends"), program); !known || err != nil {
		c.Errorf("backends run %v: %v", backend.Command, err)
	}
	if backend.Args[0] != "serve" {
		c.Errorf("backends are started with %v", backend.Args)
	}
	options, err := plugins.ListenArguments(backend.Args[1:], io.Discard)
	if err != nil {
		c.Fatal(err)
	}
	if options.Data != mountOf(backend, "data") || filepath.Dir(options.TLS.Cert) != mountOf(backend, "tls") || len(options.Models) != 1 {
		c.Errorf("a backend is started with %+v", options)
	}
	m := cfg.Models[0]
	if len(cfg.Models) != 1 || m.Path != options.Models[0] {
		c.Errorf("gateways serve %s, and backends have %v", m.Path, options.Models)
	}
	_, port, _ := strings.Cut(options.Listen, ":")
	scaler := c.scalers["tinsmith-backend"]
	if scaler.Spec.ScaleTargetRef.Name != set.Name || int(scaler.Spec.MaxReplicas) != len(m.Members()) || scaler.Spec.MinReplicas == nil || *scaler.Spec.MinReplicas != *set.Spec.Replicas {
		c.Errorf("%d backends are known, and there are %d, %+v", len(m.Members()), *set.Spec.Replicas, scaler.Spec)
	}
	gpus := backend.Resources.Limits["nvidia.com/gpu"]
	for i, b := range m.Members() {
		host, at, _ := strings.Cut(b.Remote.Address, ":")
		if want := fmt.Sprintf("%s-%d.%s", set.Name, i, set.Spec.ServiceName); host != want || at != port {
			c.Errorf("backend %d is at %s, expected %s:%s", i, b.Remote.Address, want, port)
		}
		if tls := b.Remote.TLS; filepath.Dir(tls.CertFile) != mountOf(gateway, "tls") || filepath.Dir(tls.CAFile) != mountOf(gateway, "tls") {
			c.Errorf("backend %d: its certificates are not in %s", i, mountOf(gateway, "tls"))
		}
		if n := int64(strings.Count(string(b.Section), "cuda:")); n != gpus.Value() {
			c.Errorf("backend %d uses %d GPUs of %d", i, n, gpus.Value())
		}
	}
	if names := c.certificates["tinsmith-backend"].Spec.DNSNames; !slices.Contains(names, "*."+set.Spec.ServiceName) {
		c.Errorf("the backends' certificate is for %v", names)
	}
}

// mountOf is where a container has a volume.
func mountOf(container corev1.Container, volume string) string {
	for _, m := range container.VolumeMounts {
		if m.Name == volume {
			return m.MountPath
		}
	}
	return "nowhere"
}

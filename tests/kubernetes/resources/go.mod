// The modules with the custom resource definitions that the chart has objects for. No program is built from them.
module bloom-runtime/tests/kubernetes/resources

go 1.26.0

require (
	github.com/prometheus-operator/prometheus-operator v0.85.0
	sigs.k8s.io/gateway-api v1.6.3
)

{{- define "bloom-runtime.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Short enough for suffixes such as -operator and for the names of pods. */}}
{{- define "bloom-runtime.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $full .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* Objects without a namespace: two releases of the same name, in different namespaces, must not share them. */}}
{{- define "bloom-runtime.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "bloom-runtime.fullname" .) }}
{{- end }}

{{- define "bloom-runtime.selectorLabels" -}}
app.kubernetes.io/name: {{ include "bloom-runtime.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end }}

{{- define "bloom-runtime.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "bloom-runtime.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "bloom-runtime.serviceAccountName" -}}
{{- ternary (include "bloom-runtime.fullname" .) "default" .Values.serviceAccount.create | default .Values.serviceAccount.name }}
{{- end }}

{{- define "bloom-runtime.operatorName" -}}
{{- printf "%s-operator" (include "bloom-runtime.fullname" .) }}
{{- end }}

{{/* An image, from a list of the root and its values. */}}
{{- define "bloom-runtime.image" -}}
{{- $root := index . 0 }}
{{- with index . 1 }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "bloom-runtime.keysSecret" -}}
{{- .Values.keys.existingSecret | default (printf "%s-keys" (include "bloom-runtime.fullname" .)) }}
{{- end }}

{{- define "bloom-runtime.claim" -}}
{{- .Values.persistence.existingClaim | default (printf "%s-data" (include "bloom-runtime.fullname" .)) }}
{{- end }}

{{/* The address of the Service within the cluster. */}}
{{- define "bloom-runtime.serviceUrl" -}}
{{- printf "http://%s.%s.svc:%v" (include "bloom-runtime.fullname" .) .Release.Namespace .Values.service.port }}
{{- end }}

{{/* The address that people use, if an Ingress or a route says which. */}}
{{- define "bloom-runtime.publicUrl" -}}
{{- if .Values.config.publicUrl }}
{{- .Values.config.publicUrl }}
{{- else if and .Values.ingress.enabled .Values.ingress.hosts }}
{{- printf "%s://%s" (ternary "https" "http" (not (empty .Values.ingress.tls))) (first .Values.ingress.hosts).host }}
{{- end }}
{{- end }}

{{/* Mistakes that the schema can't explain. */}}
{{- define "bloom-runtime.validate" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.postgresql.existingSecret) }}
{{- fail (printf "replicas is %d, but an SQLite file belongs to one server: set postgresql.existingSecret to a Secret with the URL of a PostgreSQL database, or replicas to 1" (int .Values.replicas)) }}
{{- end }}
{{- if and .Values.config.backupDir .Values.postgresql.existingSecret }}
{{- fail "config.backupDir is for SQLite, and postgresql.existingSecret is set: leave it out, and back up PostgreSQL with pg_dump or by your provider" }}
{{- end }}
{{- if and .Values.membridge.enabled (not (and .Values.membridge.existingSecret .Values.membridge.secretKeys.admin)) }}
{{- fail "membridge.enabled is true, but there is no key: set membridge.existingSecret to a Secret with the key of membridge.secretKeys.admin" }}
{{- end }}
{{- if and .Values.membridge.enabled .Values.config.membridgeServerUrl }}
{{- fail "membridge.enabled is true, so the servers use their own control plane: leave out config.membridgeServerUrl" }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (not .Values.keys.secretKeys.read) }}
{{- fail "serviceMonitor.enabled is true, but keys.secretKeys.read is empty: Prometheus needs the read key to scrape; set keys.secretKeys.read" }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}
{{- fail "ingress.enabled is true, but ingress.hosts is empty: set a host, such as --set ingress.hosts[0].host=bloom.example.com" }}
{{- end }}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}
{{- fail "httpRoute.enabled is true, but httpRoute.parentRefs is empty: set the name of a Gateway, such as --set httpRoute.parentRefs[0].name=public" }}
{{- end }}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) .Values.rbac.create .Values.operator.enabled }}
{{- fail "serviceAccount.create is false, but serviceAccount.name is empty: the rights of the operator would go to the account `default` of the namespace; set serviceAccount.name" }}
{{- end }}
{{- end }}

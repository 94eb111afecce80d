{{/* A variable of the environment, from a list of its name and value. */}}
{{- define "bloom-runtime.variable" }}
- name: {{ index . 0 }}
  value: {{ index . 1 | toString | quote }}
{{- end }}

{{- define "bloom-runtime.environment" -}}
{{- $config := omit .Values.config "publicUrl" }}
{{- range $name, $value := $config }}
{{- /* Numbers of values are floats, and large ones would be written with an exponent. */}}
{{- $text := ternary (int64 (default 0 (ternary $value 0 (kindIs "float64" $value)))) $value (kindIs "float64" $value) }}
{{- if kindIs "slice" $value }}{{ $text = join "," $value }}{{ end }}
{{- include "bloom-runtime.variable" (list ($name | snakecase | upper) $text) }}
{{- end }}
{{- with include "bloom-runtime.publicUrl" . }}
{{- include "bloom-runtime.variable" (list "PUBLIC_URL" .) }}
{{- end }}
{{- if .Values.postgresql.existingSecret }}
{{- include "bloom-runtime.variable" (list "DATABASE_URL_FILE" "/etc/bloom-runtime/postgresql/url") }}
{{- else }}
{{- include "bloom-runtime.variable" (list "DATA_DIR" "/var/lib/bloom-runtime") }}
{{- end }}
{{- range $scope, $key := .Values.keys.secretKeys }}
{{- if $key }}
{{- include "bloom-runtime.variable" (list (printf "RUNTIME_%s_KEY_FILE" (upper $scope)) (printf "/etc/bloom-runtime/keys/%s" $scope)) }}
{{- end }}
{{- end }}
{{- if .Values.membridge.existingSecret }}
{{- range $scope, $key := .Values.membridge.secretKeys }}
{{- if $key }}
{{- include "bloom-runtime.variable" (list (printf "MEMBRIDGE_%s_KEY_FILE" (upper $scope)) (printf "/etc/bloom-runtime/membridge/%s" $scope)) }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.membridge.enabled }}
{{- include "bloom-runtime.variable" (list "WITH_MEMBRIDGE" true) }}
{{- include "bloom-runtime.variable" (list "MEMBRIDGE_HOST" .Values.config.host) }}
{{- end }}
{{- if .Values.objectStore.existingSecret }}
{{- $names := ternary (list "AWS_ACCESS_KEY_ID_FILE" "AWS_SECRET_ACCESS_KEY_FILE") (list "MINIO_ACCESS_KEY_FILE" "MINIO_SECRET_KEY_FILE") (not (empty .Values.config.awsS3Bucket)) }}
{{- include "bloom-runtime.variable" (list (first $names) "/etc/bloom-runtime/object-store/access") }}
{{- include "bloom-runtime.variable" (list (last $names) "/etc/bloom-runtime/object-store/secret") }}
{{- end }}
- name: POD_NAME
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
- name: POD_NAMESPACE
  valueFrom: { fieldRef: { fieldPath: metadata.namespace } }
{{- include "bloom-runtime.variable" (list "OPERATOR" .Values.operator.enabled) }}
{{- if .Values.operator.enabled }}
{{- with .Values.operator.namespaces }}
{{- include "bloom-runtime.variable" (list "OPERATOR_NAMESPACES" (join "," .)) }}
{{- end }}
{{- include "bloom-runtime.variable" (list "OPERATOR_AGENT_IMAGE" (include "bloom-runtime.image" (list . .Values.operator.agentImage))) }}
{{- include "bloom-runtime.variable" (list "OPERATOR_AGENT_SERVER" (.Values.operator.agentServer | default (include "bloom-runtime.serviceUrl" .))) }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The items of a Secret that are mounted, from a map of files and keys. */}}
{{- define "bloom-runtime.items" -}}
items:
{{- range $file, $key := . }}
{{- if $key }}
  - { key: {{ quote $key }}, path: {{ quote $file }} }
{{- end }}
{{- end }}
{{- end }}

{{- define "bloom-runtime.volumes" -}}
- name: tmp
  emptyDir: { sizeLimit: {{ .Values.tmp.sizeLimit | quote }} }
- name: keys
  secret:
    secretName: {{ include "bloom-runtime.keysSecret" . }}
    defaultMode: 288 # 0440
    {{- include "bloom-runtime.items" .Values.keys.secretKeys | nindent 4 }}
{{- if .Values.membridge.existingSecret }}
- name: membridge
  secret:
    secretName: {{ .Values.membridge.existingSecret }}
    defaultMode: 288 # 0440
    {{- include "bloom-runtime.items" .Values.membridge.secretKeys | nindent 4 }}
{{- end }}
{{- if .Values.objectStore.existingSecret }}
- name: object-store
  secret:
    secretName: {{ .Values.objectStore.existingSecret }}
    defaultMode: 288 # 0440
    {{- include "bloom-runtime.items" .Values.objectStore.secretKeys | nindent 4 }}
{{- end }}
{{- if .Values.postgresql.existingSecret }}
- name: postgresql
  secret:
    secretName: {{ .Values.postgresql.existingSecret }}
    defaultMode: 288 # 0440
    {{- include "bloom-runtime.items" (dict "url" .Values.postgresql.secretKey) | nindent 4 }}
{{- else }}
- name: data
  {{- if .Values.persistence.enabled }}
  persistentVolumeClaim: { claimName: {{ include "bloom-runtime.claim" . }} }
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "bloom-runtime.mounts" -}}
- { name: tmp, mountPath: /tmp }
- { name: keys, mountPath: /etc/bloom-runtime/keys, readOnly: true }
{{- if .Values.membridge.existingSecret }}
- { name: membridge, mountPath: /etc/bloom-runtime/membridge, readOnly: true }
{{- end }}
{{- if .Values.objectStore.existingSecret }}
- { name: object-store, mountPath: /etc/bloom-runtime/object-store, readOnly: true }
{{- end }}
{{- if .Values.postgresql.existingSecret }}
- { name: postgresql, mountPath: /etc/bloom-runtime/postgresql, readOnly: true }
{{- else }}
- { name: data, mountPath: /var/lib/bloom-runtime }
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "bloom-runtime.probe" -}}
httpGet: { path: {{ index . 0 }}, port: http }
{{ toYaml (index . 1) }}
{{- end }}

{{/* The pods of the server, which a Deployment or a StatefulSet runs. */}}
{{- define "bloom-runtime.pod" -}}
{{- $leaves := ternary (int .Values.preStopSeconds) 0 (gt (int .Values.replicas) 1) }}
metadata:
  labels:
    {{- /* Without the version of the chart, which would replace the pods when only the chart changes. */}}
    {{- include "bloom-runtime.selectorLabels" . | nindent 4 }}
    {{- with .Values.commonLabels }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "bloom-runtime.serviceAccountName" . }}
  # Only the operator calls the API server.
  automountServiceAccountToken: {{ .Values.operator.enabled }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds | default (add 30 $leaves (.Values.config.requestTimeoutSeconds | default 30)) }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  {{- $selector := dict "labelSelector" (dict "matchLabels" (include "bloom-runtime.selectorLabels" $ | fromYaml)) }}
  {{- $constraints := list }}
  {{- range . }}{{ $constraints = append $constraints (merge (deepCopy .) $selector) }}{{ end }}
  topologySpreadConstraints:
    {{- toYaml $constraints | nindent 4 }}
  {{- end }}
  {{- with .Values.extraInitContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: server
      image: {{ include "bloom-runtime.image" (list . .Values.image) }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - serve
        {{- with .Values.extraArgs }}{{ toYaml . | nindent 8 }}{{ end }}
      env:
        {{- include "bloom-runtime.environment" . | trim | nindent 8 }}
      {{- with .Values.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - { name: http, containerPort: 5000 }
        {{- if .Values.membridge.enabled }}
        - { name: membridge, containerPort: 8000 }
        {{- end }}
      startupProbe:
        {{- include "bloom-runtime.probe" (list "/healthz" .Values.startupProbe) | nindent 8 }}
      livenessProbe:
        {{- include "bloom-runtime.probe" (list "/healthz" .Values.livenessProbe) | nindent 8 }}
      readinessProbe:
        {{- include "bloom-runtime.probe" (list "/readyz" .Values.readinessProbe) | nindent 8 }}
      {{- if $leaves }}
      lifecycle:
        preStop: { sleep: { seconds: {{ $leaves }} } }
      {{- end }}
      {{- with .Values.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      volumeMounts:
        {{- include "bloom-runtime.mounts" . | nindent 8 }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "bloom-runtime.volumes" . | nindent 4 }}
{{- end }}

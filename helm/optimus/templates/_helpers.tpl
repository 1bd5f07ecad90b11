{{- define "optimus.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "optimus.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "optimus.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "optimus.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "optimus.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "optimus.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: optimus
{{- end -}}

{{- define "optimus.selector" -}}
app.kubernetes.io/name: {{ include "optimus.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "optimus.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "optimus.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "optimus.taskServiceAccount" -}}
{{- printf "%s-task" (include "optimus.fullname" .) -}}
{{- end -}}

{{- define "optimus.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- define "optimus.claim" -}}
{{- if .Values.tasks.jobs.existingClaim -}}
{{- .Values.tasks.jobs.existingClaim -}}
{{- else if .Values.tasks.jobs.create -}}
{{- printf "%s-jobs" (include "optimus.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "optimus.secret" -}}
{{- required "existingSecret is required: the name of a secret with the keys token, secret and database-url (docs/kubernetes.md)" .Values.existingSecret -}}
{{- end -}}

{{- define "optimus.serviceUrl" -}}
{{- default (printf "http://%s.%s.svc:%v" (include "optimus.fullname" .) .Release.Namespace .Values.service.port) .Values.tasks.serviceUrl -}}
{{- end -}}

{{/* The settings of the backend, as one JSON object. */}}
{{- define "optimus.kubernetes" -}}
{{- $tasks := .Values.tasks -}}
{{- $found := dict
  "namespace" .Release.Namespace
  "instance" .Release.Name
  "image" (printf "%s:%s" $tasks.image.repository (default .Chart.AppVersion $tasks.image.tag))
  "image_pull_policy" $tasks.image.pullPolicy
  "image_pull_secrets" .Values.imagePullSecrets
  "service_account" (include "optimus.taskServiceAccount" .)
  "node_selector" $tasks.nodeSelector
  "tolerations" $tasks.tolerations
  "volumes" $tasks.volumes
  "volume_mounts" $tasks.volumeMounts
  "run_as_user" (int $tasks.podSecurity.runAsUser)
  "run_as_group" (int $tasks.podSecurity.runAsGroup)
  "cpu_limits" $tasks.cpuLimits
  "grace_seconds" (int $tasks.graceSeconds)
  "gpu_types" $tasks.gpuTypes
  "gang" $tasks.gang
  "queue" $tasks.queue
  "training_jobs" .Values.trainingJobs.enabled
  "keep_objects_seconds" .Values.trainingJobs.keepSeconds -}}
{{- with $tasks.serverImage.repository }}{{ $_ := set $found "server_image" (printf "%s:%s" . (default $.Chart.AppVersion $tasks.serverImage.tag)) }}{{ end -}}
{{- with include "optimus.claim" . }}{{ $_ := set $found "jobs_claim" . }}{{ end -}}
{{- with $tasks.priorityClassName }}{{ $_ := set $found "priority_class" . }}{{ end -}}
{{- with $tasks.runtimeClassName }}{{ $_ := set $found "runtime_class" . }}{{ end -}}
{{- mergeOverwrite $found $tasks.extra | toJson -}}
{{- end -}}

{{- define "optimus.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "optimus.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "optimus.databaseEnv" -}}
- name: OPTIMUS_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "optimus.secret" . }}
      key: {{ .Values.secretKeys.databaseUrl }}
- name: OPTIMUS_DATA_DIRECTORY
  value: /var/lib/optimus
{{- end -}}

{{- define "optimus.taskSelector" -}}
app.kubernetes.io/managed-by: optimus
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "optimus.runbooks" -}}
{{- default (printf "http://%s.%s.svc:%v/runbooks" (include "optimus.fullname" .) .Release.Namespace .Values.service.port) .Values.monitoring.prometheusRule.runbooksUrl | trimSuffix "/" -}}
{{- end }}

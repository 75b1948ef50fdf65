# What root does once on Debian 13 to make the base environment; GIT_NAME and GIT_EMAIL are set.
apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
  ca-certificates curl gh git gzip jq less nodejs npm openssh-client procps python3 python3-venv ripgrep tar unzip zip
rm -rf /var/lib/apt/lists/*

# The session's volume is mounted at /session: work and home are on it, so that both are saved together.
groupadd --gid 10001 agent
useradd --uid 10001 --gid 10001 --no-create-home --home-dir /session/home --shell /bin/sh agent
install -d /session /copy /env

git config --system user.name "$GIT_NAME"
git config --system user.email "$GIT_EMAIL"
git config --system init.defaultBranch main

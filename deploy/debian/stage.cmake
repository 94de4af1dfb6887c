# SPDX-License-Identifier: Apache-2.0
#
# Run by CPack when the components are installed in its own folder and before it makes packages of them: adds what Debian's
# policy asks of each package, and gives all files the date of the sources.
function(stage_package folder name)
    set(doc "${folder}/usr/share/doc/${name}")
    file(MAKE_DIRECTORY "${doc}")
    file(WRITE "${doc}/copyright"
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: cairn\n\n"
        "Files: *\nCopyright: 2026 the authors of Cairn\nLicense: Apache-2.0\n"
        " On Debian systems the text of the license is in /usr/share/common-licenses/Apache-2.0.\n")
    cmake_path(GET CPACK_RESOURCE_FILE_LICENSE PARENT_PATH tree)
    file(COPY_FILE "${tree}/CHANGELOG.md" "${doc}/changelog")
    string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
    file(WRITE "${doc}/changelog.Debian"
        "cairn (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium\n\n"
        "  * See changelog.gz.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
    file(GLOB_RECURSE plain "${folder}/usr/share/man/*")
    execute_process(COMMAND gzip -9nf "${doc}/changelog" "${doc}/changelog.Debian" ${plain} COMMAND_ERROR_IS_FATAL ANY)
    file(GLOB_RECURSE plain "${doc}/*" "${folder}/usr/share/man/*")
    file(CHMOD ${plain} FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endfunction()

foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    string(TOUPPER "${component}" key)
    stage_package("${CPACK_TEMPORARY_DIRECTORY}/${component}" "${CPACK_DEBIAN_${key}_PACKAGE_NAME}")
endforeach()
# dpkg keeps the configuration as it was shipped by itself; here it is an example.
set(server "${CPACK_TEMPORARY_DIRECTORY}/server")
file(MAKE_DIRECTORY "${server}/usr/share/doc/cairn-server/examples")
file(RENAME "${server}/etc/cairn/cairnd.conf.default" "${server}/usr/share/doc/cairn-server/examples/cairnd.conf")
